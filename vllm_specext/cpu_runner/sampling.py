"""Bodies for temperature, min-p and the Gumbel-max draw (``sample/gumbel.py``, ``sample/min_p.py``).

Shapes: `L` logits rows, `M` request slots, `V` vocabulary. `expanded_idx_mapping` `[L]` gives each row its slot.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

from functools import cache
from importlib import import_module

import numpy as np
import numpy.typing as npt
import torch

from vllm_specext.cpu_runner import noise


def temperature(
    logits: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping: torch.Tensor,
    temperatures: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Divide each row of `logits` `[L, V]` by its temperature; greedy rows (0) stay as they are."""
    scale = temperatures[expanded_idx_mapping].unsqueeze(1)
    logits.div_(torch.where(scale == 0.0, 1.0, scale))


def min_p(
    logits: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping: torch.Tensor,
    min_ps: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Mask tokens of `logits` `[L, V]` less likely than ``min_p`` times the likeliest one of their row."""
    # min_p = 0 gives a threshold of -inf, which masks nothing.
    threshold = logits.amax(dim=-1, keepdim=True).float() + min_ps[expanded_idx_mapping].log().unsqueeze(1)
    logits.masked_fill_(logits < threshold, float("-inf"))


def draw(
    scores: npt.NDArray[np.floating],
    temperatures: npt.NDArray[np.float32],
    seeds: npt.NDArray[np.int64],
    pos: npt.NDArray[np.int64],
    apply_temperature: bool,
) -> npt.NDArray[np.int64]:
    """Return the token `[L]` that each row of `scores` `[L, V]` (overwritten) draws; temperature 0 takes the best."""
    rows = np.flatnonzero(temperatures)
    if len(rows):
        whole = len(rows) == len(scores)
        drawn = scores if whole else scores[rows]
        if apply_temperature:
            drawn /= temperatures[rows, None]
        drawn += noise.gumbel(seeds[rows], pos[rows], scores.shape[1], fp64=scores.dtype == np.float64)
        if not whole:
            scores[rows] = drawn
    return scores.argmax(axis=1)


@cache
def noise_depends_on_step() -> bool:
    """Whether the noise of a draft, and of its verification as a block, depends on the place in the draft, as from vLLM
    0.33 on."""
    return hasattr(import_module("vllm.v1.worker.gpu.sample.gumbel"), "spec_step_seed")


def gumbel_sample(
    local_argmax: torch.Tensor,
    local_argmax_stride: int,
    local_max: torch.Tensor,
    local_max_stride: int,
    logits_cache: torch.Tensor | None,
    logits_cache_stride_0: int,
    logits_cache_stride_1: int,
    logits_cache_col: torch.Tensor | None,
    logits_cache_source: torch.Tensor | None,
    logits_cache_source_stride: int,
    logits: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping: torch.Tensor,
    seeds: torch.Tensor,
    pos: torch.Tensor,
    temperatures: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    IS_DRAFTING: bool,
    APPLY_TEMPERATURE: bool,
    USE_FP64: bool,
    PER_TOKEN_COL: bool,
) -> None:
    """Draw one token per row of `logits` `[L, V]`, and keep the logits of drafts in `logits_cache` `[M, N, V]`.

    The kernel reports the winner of every vocabulary block and its caller picks the best block. Here the first block
    holds the winner of the row and the others can never be picked. Rows with slot -1 (padding) are drawn greedily.
    """
    slots = expanded_idx_mapping.numpy()
    is_real = slots >= 0
    seed = seeds.numpy()[slots]
    if logits_cache is not None:
        assert logits_cache_source is not None
        assert logits_cache_col is not None
        real = torch.from_numpy(np.flatnonzero(is_real))
        column = logits_cache_col[real] if PER_TOKEN_COL else logits_cache_col
        logits_cache[expanded_idx_mapping[real], column, :vocab_size] = logits_cache_source[real]
        if noise_depends_on_step():
            seed = noise.seed_of_step(seed, logits_cache_col.numpy())

    position = pos.numpy() + noise.DRAFT_POSITION_SALT if IS_DRAFTING else pos.numpy()
    row_temperatures = np.where(is_real, temperatures.numpy()[slots], np.float32(0.0))
    # `draw` overwrites its scores, but only to draw: greedy rows alone need no copy.
    scores = logits.to(torch.float32, copy=bool(row_temperatures.any())).numpy()
    if USE_FP64 and APPLY_TEMPERATURE:
        # The kernel divides in float32 and widens afterwards.
        scores /= np.where(row_temperatures == 0.0, np.float32(1.0), row_temperatures)[:, None]
    if USE_FP64:
        scores = scores.astype(np.float64)
    token = draw(scores, row_temperatures, seed, position, APPLY_TEMPERATURE and not USE_FP64)

    local_argmax.numpy()[:, 0] = token
    best = local_max.numpy()
    best[:, 0] = scores[np.arange(len(token)), token]
    best[:, 1:] = -np.inf
