"""The drafters that are trained, which know what their checkpoint says of them."""

from torch import nn

from vllm_specext.methods.block.markov import DSparkDrafter
from vllm_specext.methods.block.model import DFlashDrafter
from vllm_specext.training.block.shape import BlockDrafterShape

DEVIATION = 0.02
"""Standard deviation of a new Markov head's numbers, which add next to nothing then."""


class TrainedDFlash(DFlashDrafter):
    def __init__(self, shape: BlockDrafterShape) -> None:
        super().__init__(shape.sizes())
        self.shape = shape


class TrainedDSpark(DSparkDrafter):
    def __init__(self, shape: BlockDrafterShape) -> None:
        assert shape.markov_rank is not None
        super().__init__(shape.sizes(), shape.vocab_size, shape.markov_rank, confidence=shape.confidence)
        self.shape = shape
        for table in (self.markov_head.markov_w1, self.markov_head.markov_w2):
            nn.init.normal_(table.weight, std=DEVIATION)


BlockDrafter = TrainedDFlash | TrainedDSpark


def drafter_of(shape: BlockDrafterShape) -> BlockDrafter:
    """An untrained one."""
    return TrainedDFlash(shape) if shape.markov_rank is None else TrainedDSpark(shape)
