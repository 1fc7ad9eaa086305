"""EAGLE-3's recipe."""

from typing import Annotated

from pydantic import Field

from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.recipes.values import Positive


class Eagle3Recipe(StagedKeys):
    """How an EAGLE-3 drafter is trained; the defaults are the recipe ``ours``."""

    clip_value: Positive = 0.5
    later_passes: Annotated[float, Field(gt=0, le=1)] = 0.8
    """A pass's loss weighs this much of the one before."""
    align: Annotated[int, Field(ge=0, le=1000)] = 0
    """Best tokens in GRIFFIN's token-alignable training; 0: later passes learn everywhere."""
