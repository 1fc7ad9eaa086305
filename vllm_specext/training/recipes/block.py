"""DFlash's and DSpark's recipes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vllm_specext.methods.block.checkpoint import MAX_BLOCK
from vllm_specext.training.recipes.staged import Rate, StagedKeys
from vllm_specext.training.recipes.values import Count, Positive, Weight


class DFlashRecipe(StagedKeys):
    """How a DFlash drafter is trained; the defaults are the recipe ``ours``. Its epochs, rate, blocks and weights are
    the paper's. There is one stage, of one pass over each batch."""

    epochs: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1, max_length=1)] = (6.0,)
    steps: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1)] | None = None
    learning_rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=1)] = (6e-4,)
    optimizer: Literal["adamw", "muon"] = "adamw"
    layers: Annotated[int, Field(ge=1, le=64)] = 5
    """Of the drafter."""
    block_size: Annotated[int, Field(ge=2, le=MAX_BLOCK)] = 16
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


class DSparkRecipe(DFlashRecipe):
    """How a DSpark drafter is trained; the defaults are the recipe ``ours``. Its epochs, rate, blocks and weights are
    those of the code that trained DeepSeek's."""

    epochs: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1, max_length=1)] = (10.0,)
    weight_decay: Weight = 0.0
    block_size: Annotated[int, Field(ge=2, le=MAX_BLOCK)] = 7
    """Rows of a block, each of which gives the token after its own."""
    decay: Positive = 4.0
    markov_rank: Annotated[int, Field(ge=1, le=2**14)] = 256
    """Width of the Markov head's two tables."""
    token_weight: Weight = 0.1
    """Of the cross-entropy against the target's distribution."""
    distance_weight: Weight = 0.9
    """Of the sum over all tokens of the difference of both probabilities."""
    confidence_weight: Weight = 1.0
    """Of the confidence head's cross-entropy; 0: the drafter has none."""

    @model_validator(mode="after")
    def _learns(self) -> Self:
        if not self.token_weight + self.distance_weight:
            raise ValueError(
                "the recipe has token_weight 0 and distance_weight 0, with which a drafter learns nothing; one of both "
                "has to be above 0"
            )
        return self

    @property
    def chain(self) -> int:
        """Whole blocks."""
        return self.block_size
