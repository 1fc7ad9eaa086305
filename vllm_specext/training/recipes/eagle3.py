"""EAGLE-3's recipe."""

from typing import Annotated

from pydantic import Field, model_validator

from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.recipes.values import Count


class Eagle3Recipe(StagedKeys):
    """How an EAGLE-3 drafter is trained; the defaults are the recipe ``ours``."""

    passes: Annotated[int, Field(ge=1, le=16)] | None = None
    """Over each batch, in every stage; in stage ``j`` it is ``j``, unless given."""
    later_passes: Annotated[float, Field(gt=0, le=1)] = 0.8
    """A pass's loss weighs this much of the one before."""
    align: Annotated[int, Field(ge=0, le=1000)] = 0
    """Best tokens in GRIFFIN's token-alignable training; 0: later passes learn everywhere."""
    draft_vocab_size: Count | None = None
    """Tokens that the drafter scores, by an output layer of its own; all, by the target's, unless given."""
    draft_vocab_file: str | None = None
    """The file of ``vllm-specext vocab`` with these tokens, the most frequent first."""

    @property
    def passes_of_stages(self) -> tuple[int, ...]:
        return super().passes_of_stages if self.passes is None else (self.passes,) * self.stages

    @model_validator(mode="after")
    def _vocabulary(self) -> "Eagle3Recipe":
        given = {"draft_vocab_size", "draft_vocab_file"} & self.model_fields_set
        if len(given) == 1:
            raise ValueError(f"the recipe has {given.pop()}; draft_vocab_size and draft_vocab_file belong together")
        if self.draft_vocab_file is not None and self.draft_vocab_size is None:
            raise ValueError("the recipe has draft_vocab_file, but draft_vocab_size is null; they belong together")
        return self
