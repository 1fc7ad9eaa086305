"""MoA's recipe."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from vllm_specext.training.recipes.staged import Rate, StagedKeys
from vllm_specext.training.recipes.values import Count, Positive, Weight


class MoARecipe(StagedKeys):
    """How a MoA drafter is trained; the defaults are the recipe ``ours``. There is one stage, of one pass over each
    batch. A pack has as many rows as fit into it when all are as long as the longest."""

    epochs: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1, max_length=1)] = (10.0,)
    steps: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1)] | None = None
    learning_rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=1)] = (2e-4,)
    weight_decay: Weight = 0.0
    final_learning_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The one that the linear decay ends at."""
    clip_norm: Positive = 1.0
    drafted: tuple[Count, Count] = (5, 13)
    """Fewest and most drafting steps between two verified positions that are trained for."""
    staircase: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The share of the training in which the first layer often sees its own block alone."""
    count_boundaries: bool = True
    """Whether verified positions are learnt too."""
    lsa: bool = True
    """Whether a layer looks across the target's layers; else their keys and values are averaged."""
    lsa_mlp_size: Count | None = None
    """Width of that layer's MLP; as wide as a token's keys and values in one of the target's layers, unless given."""
    target_layer_inference: Annotated[int, Field(ge=0)] = 0
    """The target's last layers that run over the drafter's feature."""

    @model_validator(mode="after")
    def _ranges(self) -> "MoARecipe":
        if self.drafted[0] > self.drafted[1]:
            raise ValueError(
                f"the recipe's key 'drafted' is {list(self.drafted)}; expected the fewest steps, then the most"
            )
        if self.final_learning_rate > self.learning_rates[0]:
            raise ValueError(
                f"the recipe's key 'final_learning_rate' is {self.final_learning_rate}, but learning_rates is "
                f"[{self.learning_rates[0]}]; expected at most as much"
            )
        return self


RELEASED: dict[str, Any] = {
    "epochs": [30.0],
    "learning_rates": [6e-4],
    "final_learning_rate": 3e-5,
    "optimizer": "adamw",
    "warmup_steps": 50,
    "schedule_steps": 6500,
}
"""The constants of the official code, where they differ from ours."""
