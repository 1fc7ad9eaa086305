"""Attention of blocks that begin somewhere in packs of text, a few blocks at a time, so that no scores of all rows over
all of the text live. Every row sees the text of its own row before its block, and its block.

``B`` packs of ``L`` slots, ``A`` blocks of ``W`` rows each, ``Q = A W``; heads are ``[B, H, Q, D]``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vllm_specext.methods.layers import KV, Attention

CHUNK = 512
"""Rows of blocks, of a pack, whose keys are put together at the same time."""


@dataclass(frozen=True)
class Chunk:
    """Rows of some blocks, and the text that they can see."""

    rows: slice
    text: slice
    """Slots of the packs."""
    anchors: Tensor
    """``[B, rows]``: slots of their blocks' first tokens."""
    first: Tensor
    """``[B, rows]``: slots at which their rows of text begin."""
    width: int

    def seen(self) -> Tensor:
        """``[B, 1, rows, text + rows]``"""
        slots = torch.arange(self.text.start, self.text.stop, device=self.anchors.device)
        of_text = (slots < self.anchors[..., None]) & (slots >= self.first[..., None])
        block = torch.arange(of_text.shape[1], device=slots.device) // self.width
        of_block = (block[:, None] == block).expand(len(of_text), -1, -1)
        return torch.cat((of_text, of_block), dim=2)[:, None]


@dataclass(frozen=True)
class BlockAttention:
    """An `Attend` of a block drafter, for the same blocks in all layers."""

    chunks: tuple[Chunk, ...]

    @classmethod
    def of(cls, anchors: Tensor, first: Tensor, width: int, device: torch.device | str) -> "BlockAttention":
        """Of blocks whose first tokens are in slots ``anchors`` ``[B, A]``, ascending, of rows of text that begin in
        slots ``first`` ``[B, A]``; both are on the host, which would have to wait for a GPU."""
        return cls(tuple(_chunks(anchors, first, width, device)))

    def __call__(self, attention: Attention, queries: Tensor, text: KV, own: KV) -> Tensor:
        """Attention output ``[B, Q, d]`` of ``queries`` over the ``text``'s keys and values and the rows' ``own``."""
        dtype = own[1].dtype  # that of the arithmetic: norms of queries and keys give float32
        queries, text, own = queries.to(dtype), (text[0].to(dtype), text[1]), (own[0].to(dtype), own[1])
        parts = []
        for chunk in self.chunks:
            tensors = [queries[:, :, chunk.rows]]
            tensors += [x[:, :, chunk.text] for x in text] + [x[:, :, chunk.rows] for x in own]
            run = partial(_attend, attention, chunk)
            if torch.is_grad_enabled():
                parts.append(checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(run(*tensors))
        return attention.merge(torch.cat(parts, dim=2))


def _chunks(anchors: Tensor, first: Tensor, width: int, device: torch.device | str) -> Iterator[Chunk]:
    size = max(1, CHUNK // width)
    for number, (some, begins) in enumerate(zip(anchors.split(size, 1), first.split(size, 1), strict=True)):
        start = number * size * width
        rows, text = slice(start, start + some.shape[1] * width), slice(int(begins.min()), int(some.max()))
        of_rows = [x.repeat_interleave(width, dim=1).to(device) for x in (some, begins)]
        yield Chunk(rows, text, of_rows[0], of_rows[1], width)


def _attend(attention: Attention, chunk: Chunk, queries: Tensor, *keys_values: Tensor) -> Tensor:
    """``[B, H, rows, D]``; keys and values of the text, then of the rows."""
    keys, values, own_keys, own_values = keys_values
    keys, values = (attention.repeat(torch.cat(pair, dim=2)) for pair in ((keys, own_keys), (values, own_values)))
    return F.scaled_dot_product_attention(queries, keys, values, chunk.seen())
