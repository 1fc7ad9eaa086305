"""DSpark's drafter (arXiv 2607.05147) in plain torch: DFlash's, whose positions know of one another by a Markov head.

Every row of a block gives the token after its own, the last token of the text the first one. To the logits of a
position a bias is added that the token before it makes, so that tokens are drawn one after the other, without a further
pass of the drafter. A confidence head says how likely a position's token is accepted. Module names are those of the
released checkpoints.

Shapes: ``d`` hidden size, ``r`` rank of the Markov head, ``V`` tokens.
"""

import torch
from torch import Tensor, nn

from vllm_specext.methods.block.model import DFlashDrafter, Sizes


class MarkovHead(nn.Module):
    """Two tables of tokens: the logits of ``y`` after ``x`` get ``markov_w1[x] · markov_w2[y]``."""

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Embedding(vocab_size, rank)

    def forward(self, before: Tensor) -> Tensor:
        """What is added to the logits ``[..., V]`` after the tokens ``before`` ``[...]``."""
        added: Tensor = self.markov_w1(before) @ self.markov_w2.weight.T
        return added


class ConfidenceHead(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)

    def forward(self, features: Tensor, before: Tensor) -> Tensor:
        """Logits ``[...]`` of being accepted, from the head's inputs ``[..., d]`` and what the Markov head's first
        table has for the tokens before, ``[..., r]``."""
        logits: Tensor = self.proj(torch.cat((features, before), dim=-1)).squeeze(-1)
        return logits


class DSparkDrafter(DFlashDrafter):
    def __init__(self, sizes: Sizes, vocab_size: int, rank: int, *, confidence: bool) -> None:
        super().__init__(sizes)
        self.markov_head = MarkovHead(vocab_size, rank)
        self.confidence_head = ConfidenceHead(sizes.hidden_size + rank) if confidence else None
