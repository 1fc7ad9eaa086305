"""What a block drafter has of its target."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.training.logits import PLAIN, Logits


@dataclass(frozen=True)
class Ends:
    """The target's, frozen, as a drafter reads them."""

    embedding: Tensor
    head: Tensor
    """Both ``[V, d]``."""
    mask: int
    """The token that stands for those that are not known yet."""
    scale: float = 1.0
    """What embeddings are multiplied by."""
    logits: Logits = PLAIN
    """How the target makes its own. A drafter's config.json names neither cap nor scale, so that a server makes its
    logits plainly."""

    def rows(self, first_ids: Tensor, width: int) -> Tensor:
        """Embeddings ``[B, A · width, d]`` of blocks that begin with tokens ``first_ids`` ``[B, A]``."""
        masks = first_ids.new_full((*first_ids.shape, width - 1), self.mask)
        return self.scale * F.embedding(torch.cat((first_ids[..., None], masks), dim=-1).flatten(1), self.embedding)
