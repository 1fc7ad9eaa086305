"""Batches of a block drafter's training: blocks that begin at random places of answers in packed rows.

``B`` packs of ``L`` slots, ``A`` blocks of ``W`` rows, which draft ``D`` tokens, ``d`` hidden size.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from vllm_specext.training.block.attention import BlockAttention
from vllm_specext.training.generators import generator
from vllm_specext.training.packs import Packed


@dataclass(frozen=True)
class BlockBatch:
    anchors: Tensor
    """``[B, A]``: slots of the blocks' first tokens, ascending, on the host."""
    width: int
    """``W``"""
    attend: BlockAttention
    preceding: Tensor
    """``[B, A, D]``: the text's tokens before each of those to predict, of which a block begins with the first."""
    places: Tensor
    """``[B, A · W]``: of the blocks' rows in their rows of text."""
    text_places: Tensor
    """``[B, L]``: of the packs' slots."""
    states: Tensor
    """``[B, L, n d]``: what the drafter reads of the text."""
    features: Tensor
    """``[B, L, d]``: from feature ``s`` the target's distribution of token ``s + 1`` follows."""
    before: Tensor
    """``[B, A, D]``: the slots before those of the tokens to predict."""
    counted: Tensor
    """``[B, A, D]`` bool: tokens that are in the loss."""


def make_blocks(packed: Packed, count: int, width: int, drafted: int, seed: int) -> BlockBatch:
    """``count`` blocks of ``width`` rows, which draft so many tokens, in every pack, or as many as it has slots. They
    begin before a token that is learnt, after the first of a row, each at another place; those that are too many count
    nowhere. A block counts up to the first token that is not learnt. A pack's blocks follow from its number, whichever
    process has it."""
    assert packed.aux is not None
    length = packed.learnt.shape[1]
    positions, later = host_places(packed)
    steps = torch.arange(1, drafted + 1)
    slots = (torch.arange(length)[:, None] + steps).clamp(max=length - 1)
    # The state before each token of a row is known: at most its last one was never read.
    counted = ((later[..., None] >= steps) & packed.learnt[:, slots]).cumprod(dim=-1).bool()
    possible = counted[..., 0] & (positions > 0)
    drawn = torch.stack([torch.rand(length, generator=generator(seed, number)) for number in packed.numbers])
    anchors = torch.where(possible, drawn, -1.0).topk(min(count, length), dim=1).indices.sort(dim=1).values
    of_anchors = (counted & possible[..., None]).gather(1, anchors[..., None].expand(-1, -1, drafted))
    rows = positions.gather(1, anchors)
    device = packed.token_ids.device
    before = (anchors[..., None] + steps - 1).clamp(max=length - 1).to(device)
    preceding = packed.token_ids.gather(1, before.flatten(1)).view_as(before)
    return BlockBatch(
        anchors,
        width,
        BlockAttention.of(anchors, anchors - rows, width, device),
        preceding,
        (rows[..., None] + torch.arange(width)).flatten(1).to(device),
        packed.layout.positions,
        packed.aux,
        packed.features,
        before,
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
