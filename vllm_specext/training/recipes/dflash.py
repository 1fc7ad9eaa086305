"""DFlash's recipe."""

from typing import Annotated, Literal

from pydantic import Field

from vllm_specext.training.recipes.staged import Rate, StagedKeys
from vllm_specext.training.recipes.values import Count, Positive


class DFlashRecipe(StagedKeys):
    """How a DFlash drafter is trained; the defaults are the recipe ``ours``. Its epochs, rate, blocks and weights are
    the paper's. There is one stage, of one pass over each batch."""

    epochs: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1, max_length=1)] = (6.0,)
    steps: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1)] | None = None
    learning_rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=1)] = (6e-4,)
    optimizer: Literal["adamw", "muon"] = "adamw"
    clip_value: Positive = 0.5
    layers: Annotated[int, Field(ge=1, le=64)] = 5
    """Of the drafter."""
    block_size: Annotated[int, Field(ge=2, le=65)] = 16
    """Rows of a block: the last token of a text, and mask tokens for those after it."""
    anchors: Count = 512
    """Blocks in a pack."""
    decay: Positive = 7.0
    """The loss of the j-th token of a block weighs exp(-(j - 1) / decay)."""
    mask_token_id: Annotated[int, Field(ge=0)] | None = None
    """The token that stands for those that are not known yet; one that the tokenizer does not have, or its padding,
    unless given."""

    @property
    def chain(self) -> int:
        """Whole blocks."""
        return self.block_size - 1
