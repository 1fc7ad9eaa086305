"""Batches of DFlash's training: blocks that begin at random places of answers in packed rows.

``B`` packs of ``L`` slots, ``A`` blocks of ``W`` rows, ``d`` hidden size.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from vllm_specext.training.dflash.attention import BlockAttention
from vllm_specext.training.generators import generator
from vllm_specext.training.packs import Packed


@dataclass(frozen=True)
class BlockBatch:
    anchors: Tensor
    """``[B, A]``: slots of the blocks' first tokens, ascending, on the host."""
    width: int
    """``W``"""
    attend: BlockAttention
    first_ids: Tensor
    """``[B, A]``: the tokens that blocks begin with."""
    places: Tensor
    """``[B, A · W]``: of the blocks' rows in their rows of text."""
    text_places: Tensor
    """``[B, L]``: of the packs' slots."""
    states: Tensor
    """``[B, L, n d]``: what the drafter reads of the text."""
    features: Tensor
    """``[B, L, d]``: from feature ``s`` the target's distribution of token ``s + 1`` follows."""
    before: Tensor
    """``[B, A, W - 1]``: the slots before those of the tokens to predict."""
    counted: Tensor
    """``[B, A, W - 1]`` bool: tokens that are in the loss."""


def make_blocks(packed: Packed, count: int, width: int, seed: int) -> BlockBatch:
    """``count`` blocks of ``width`` rows in every pack, or as many as it has slots. They begin before a token that is
    learnt, after the first of a row, each at another place; those that are too many count nowhere. A block counts up to
    the first token that is not learnt. A pack's blocks follow from its number, whichever process has it."""
    assert packed.aux is not None
    length = packed.learnt.shape[1]
    positions, later = host_places(packed)
    steps = torch.arange(1, width)
    slots = (torch.arange(length)[:, None] + steps).clamp(max=length - 1)
    # The state before each token of a row is known: at most its last one was never read.
    counted = ((later[..., None] >= steps) & packed.learnt[:, slots]).cumprod(dim=-1).bool()
    possible = counted[..., 0] & (positions > 0)
    drawn = torch.stack([torch.rand(length, generator=generator(seed, number)) for number in packed.numbers])
    anchors = torch.where(possible, drawn, -1.0).topk(min(count, length), dim=1).indices.sort(dim=1).values
    of_anchors = (counted & possible[..., None]).gather(1, anchors[..., None].expand(-1, -1, width - 1))
    rows = positions.gather(1, anchors)
    device = packed.token_ids.device
    return BlockBatch(
        anchors,
        width,
        BlockAttention.of(anchors, anchors - rows, width, device),
        packed.token_ids.gather(1, anchors.to(device)),
        (rows[..., None] + torch.arange(width)).flatten(1).to(device),
        packed.layout.positions,
        packed.aux,
        packed.features,
        (slots[anchors] - 1).to(device),
        of_anchors.to(device),
    )


def host_places(packed: Packed) -> tuple[Tensor, Tensor]:
    """Of every slot its place in its row, and how many of the row come after it, both ``[B, L]`` and on the host."""
    length = packed.learnt.shape[1]
    begins = torch.zeros(len(packed.learnt), length, dtype=torch.int64)
    ends = begins.clone()
    for pack, firsts in enumerate(packed.layout.begins):
        for first, after in pairwise([*firsts, length]):
            begins[pack, first:after], ends[pack, first:after] = first, after
    slots = torch.arange(length)
    return slots - begins, ends - 1 - slots
