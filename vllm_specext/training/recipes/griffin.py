"""GRIFFIN's recipe."""

from typing import Any, Literal

from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.recipes.values import Count, Positive, Weight


class GriffinRecipe(StagedKeys):
    """How a GRIFFIN drafter is trained; the defaults are the recipe ``ours``. ``mlp_size`` is the width of its fusion
    too."""

    clip_norm: Positive | None = None
    clip_value: Positive | None = 0.5
    """The most that each number of a gradient may be, as in the code that trained the released checkpoints."""
    feature_weight: Weight = 1.0
    token_weight: Weight = 0.1
    top_k_weight: Weight = 0.5
    """The weight from the second stage on; the first has no top-k loss."""
    mask_top_k: Count = 3
    mask_shift: Literal["code", "paper"] = "code"
    mask_position: Literal["token", "code"] = "token"
    """Whose mask counts: the predicted token's, or, as published, that of the feature two tokens before it."""
    masked_score: Literal["-inf", "zero"] = "-inf"
    noise: Weight = 102.4
    """Width of the uniform noise on a row's features, divided by the row's length."""


RELEASED: dict[str, Any] = {
    "epochs": [21.0, 21.0, 21.0],
    "learning_rates": [5e-5, 3e-5, 3e-5],
    "optimizer": "adamw",
    "warmup_steps": 2000,
    "schedule_steps": 800_000,
    "mask_position": "code",
    "masked_score": "zero",
    "packs": 1,
}
"""The constants of the code that trained the released checkpoints, where they differ from ours."""
