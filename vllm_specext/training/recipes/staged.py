"""The keys that recipes share: drafters are trained in stages, over packs of rows."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.recipes.values import Count, Frozen, Positive, Weight

CHAIN = 5

Rate = Annotated[float, Field(gt=0, le=1)]


class StagedKeys(Frozen):
    """Stage ``j`` makes ``j`` passes over each batch. The defaults are those of the recipe ``ours``."""

    epochs: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1, max_length=8)] = (4.0, 4.0, 4.0)
    """How often each stage reads all rows."""
    steps: Annotated[tuple[Count, ...], Field(min_length=1, max_length=8)] | None = None
    """Optimizer steps of each stage, in the place of ``epochs``."""
    learning_rates: Annotated[tuple[Rate, ...], Field(min_length=1)] = (2e-4, 1.2e-4, 1.2e-4)
    """AdamW's, one for each stage."""
    optimizer: Literal["adamw", "muon"] = "muon"
    """``muon``: Muon for the matrices, but for tables of tokens, single rows and experts; AdamW for the rest."""
    muon_factor: Annotated[float, Field(gt=0)] = 5.0
    """Muon's learning rate as a multiple of AdamW's."""
    warmup_steps: Annotated[int, Field(ge=0)] = 100
    """Steps of warm-up in each stage; without ``schedule_steps`` at most a tenth of the shortest stage."""
    schedule_steps: Count | None = None
    """The step of a stage at which the linear decay reaches zero: the last one, unless given."""
    weight_decay: Weight = 0.01
    clip_norm: Positive | None = 1.0
    """The most that all gradients together may be, by their norm; null: any."""
    tokens_per_step: Annotated[int, Field(ge=16, le=2**24)] = 8192
    """Tokens of a pack, which rows of text are put into one after the other; a process computes one at a time."""
    packs: Count = 4
    """Packs of an optimizer step, those of all processes together."""
    mlp_size: Count | None = None
    """Width of the drafter's MLP; the target's intermediate size, unless given."""
    bfloat16: bool = True
    log_every: Count = 50
    """Steps from one log entry to the next; states and evaluations follow after every so many entries that there are
    about forty of them, in a short training after every entry."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0

    @model_validator(mode="after")
    def _stages(self) -> "StagedKeys":
        name = "epochs" if self.steps is None else "steps"
        length = self.epochs if self.steps is None else self.steps
        if len(length) != len(self.learning_rates):
            raise ValueError(
                f"the recipe has {len(self.learning_rates)} entries for learning_rates, but {len(length)} for {name}; "
                "each stage needs one of both"
            )
        return self

    @property
    def stages(self) -> int:
        return len(self.learning_rates)

    @property
    def passes_of_stages(self) -> tuple[int, ...]:
        """Over a batch, in each stage."""
        return tuple(range(1, self.stages + 1))

    @property
    def most_passes(self) -> int:
        """Over a batch, in any stage."""
        return max(self.passes_of_stages)

    @property
    def chain(self) -> int:
        """Tokens of the chains by which drafters are told apart."""
        return CHAIN

    def beginning_with(self, kept: Mapping[str, Any]) -> Self:
        """The recipe for a drafter that is there already and has these keys. ``ConfigurationError`` where it was given
        one of them otherwise."""
        for key in sorted(self.model_fields_set & kept.keys()):
            if (given := getattr(self, key)) != kept[key]:
                raise ConfigurationError(
                    f"the recipe's key {key!r} is {json.dumps(given)}, but the drafter of --init has "
                    f"{json.dumps(kept[key])}, which it keeps; leave out one of the two."
                )
        return self.model_copy(update=dict(kept))

    @property
    def tokens_of_a_step(self) -> int:
        """Of an optimizer step, those of all processes together."""
        return self.tokens_per_step * self.packs

    def packs_of_each(self, processes: int) -> int:
        """Packs that every process computes for a step, one after the other. ``ConfigurationError`` where they cannot
        all have as many."""
        if self.packs % processes:
            raise ConfigurationError(
                f"the recipe's key 'packs' is {self.packs}, which {processes} processes cannot share evenly; expected "
                "a multiple of --processes."
            )
        return self.packs // processes
