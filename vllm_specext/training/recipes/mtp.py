"""The recipe of multi-token prediction modules."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vllm_specext.training.recipes.staged import Rate, StagedKeys
from vllm_specext.training.recipes.values import Count


class MtpRecipe(StagedKeys):
    """How a module is trained further; the defaults are the recipe ``ours``. Passes and their weights are FastMTP's;
    epochs and rate are those of speculators' example. There is one stage."""

    epochs: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1, max_length=1)] = (3.0,)
    steps: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1)] | None = None
    learning_rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=1)] = (1e-4,)
    optimizer: Literal["adamw", "muon"] = "adamw"
    passes: Annotated[int, Field(ge=1, le=16)] = 3
    """Over each batch."""
    later_passes: Annotated[float, Field(gt=0, le=1)] = 0.6
    """A pass's loss weighs this much of the one before."""
    align: Annotated[int, Field(ge=0, le=1000)] = 0
    """Best tokens in GRIFFIN's token-alignable training; 0: later passes learn everywhere."""

    @model_validator(mode="after")
    def _keeps_its_width(self) -> Self:
        if self.mlp_size is not None:
            raise ValueError(
                f"the recipe's key 'mlp_size' is {self.mlp_size}, but a module keeps the width that it has"
            )
        return self

    @property
    def passes_of_stages(self) -> tuple[int, ...]:
        return (self.passes,)
