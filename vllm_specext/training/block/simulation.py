"""Chains of a block drafter after every token of a text, for the acceptance that a server would see."""

from collections.abc import Iterator

import torch
from torch import Tensor

from vllm_specext.methods.block.markov import DSparkDrafter
from vllm_specext.methods.block.model import DFlashDrafter
from vllm_specext.training.block.attention import BlockAttention
from vllm_specext.training.block.ends import Ends
from vllm_specext.training.chains import TOGETHER as SCORED
from vllm_specext.training.chains import most_likely

TOGETHER = 4096
"""Rows of simulated blocks that live at the same time."""


def simulate_dflash(model: DFlashDrafter, ends: Ends, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
    """The most likely token of each of ``length`` places after each of ``token_ids`` ``[B, L]``, drafted in blocks of
    just these: ``[B, L, length]``. ``states[:, s]`` ``[B, L, n d]`` are the target's of the position before
    ``token_ids[:, s]``."""
    parts = [
        most_likely(made[:, :, 1:].flatten(1, 2), ends.head).unflatten(1, (-1, length))
        for _, made in _blocks(model, ends, token_ids, states, length + 1)
    ]
    return torch.cat(parts, dim=1)


def simulate_dspark(model: DSparkDrafter, ends: Ends, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
    """The greedy chain of ``length`` tokens after each of ``token_ids``, of the shapes of `simulate_dflash`'s."""
    parts = []
    for first_ids, made in _blocks(model, ends, token_ids, states, length):
        for ids, some in zip(first_ids.split(SCORED, dim=1), made.split(SCORED, dim=1), strict=True):
            chain = [ids]
            for features in some.unbind(dim=2):
                chain.append((features @ ends.head.T + model.markov_head(chain[-1])).argmax(dim=-1))
            parts.append(torch.stack(chain[1:], dim=-1))
    return torch.cat(parts, dim=1)


def _blocks(
    model: DFlashDrafter, ends: Ends, token_ids: Tensor, states: Tensor, width: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Some of the tokens ``[B, n]`` at a time, and the head's inputs ``[B, n, width, d]`` of blocks that begin with
    each."""
    text = model.keys_values(states, torch.arange(token_ids.shape[1], device=states.device)[None])
    start = 0
    for part in token_ids.split(max(1, TOGETHER // width), dim=1):
        anchors = 1 + torch.arange(start, start + part.shape[1])[None].expand(len(part), -1)
        places = (anchors[:1, :, None] + torch.arange(width)).flatten(1).to(states.device)
        attend = BlockAttention.of(anchors, torch.zeros_like(anchors), width, states.device)
        yield part, model.draft(ends.rows(part, width), places, text, attend).unflatten(1, (-1, width))
        start += part.shape[1]
