"""Verification of sampled drafts: ``rejection_sample`` and the two kernels of ``spec_decode/rejection_sampler.py``.

vLLM's ``rejection_sample`` starts six kernels that hand each other per-block partial sums. Here it is one function over
whole rows, with the same random numbers and the same decisions.

Shapes: `R` requests, `M` request slots, `L` logits rows (the drafts of each request and one bonus row), `N` most
drafts, `V` vocabulary. Draft number i of a request is verified against the logits of its row i.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vllm_specext.cpu_runner import noise
from vllm_specext.cpu_runner.ragged import IntArray, lengths_between, rows_and_offsets
from vllm_specext.cpu_runner.sampling import draw, noise_depends_on_step
from vllm_specext.engine.changes.replacements import replaces

Floats = npt.NDArray[np.float32]


def flatten_sampled(
    flat_sampled: torch.Tensor,
    sampled: torch.Tensor,
    sampled_stride: int,
    num_sampled: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_warps: int = 1,
) -> None:
    """Move the first `num_sampled` `[R]` tokens of each row of `sampled` `[R, N + 1]` to its logits rows `[L]`."""
    row, offset = rows_and_offsets(num_sampled.numpy())
    flat_sampled.numpy()[cu_num_logits.numpy()[row] + offset] = sampled.numpy()[row, offset]


def gather_draft_sampled(
    draft_sampled: torch.Tensor,
    pos: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    logits_indices: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    prefill_len: torch.Tensor,
    num_logits: int,
    BLOCK_SIZE: int,
) -> None:
    """Gather token and position of each logits row `[L]`; drafts of requests still in their prompt become -1."""
    token = logits_indices.numpy()
    position = positions.numpy()[token]
    local_pos = expanded_local_pos.numpy()
    placeholder = (local_pos > 0) & (position - local_pos < prefill_len.numpy()[expanded_idx_mapping.numpy()])
    draft_sampled.numpy()[:] = np.where(placeholder, -1, input_ids.numpy()[token])
    pos.numpy()[:] = position


@dataclass(frozen=True)
class _Drafts:
    """The drafts of a batch, one entry per drafted token (`D`), requests one after the other."""

    request: IntArray  # [D]
    step: IntArray  # [D] place in the request
    row: IntArray  # [D] logits row that verifies the draft
    token: IntArray  # [D], -1 for a placeholder that must be rejected
    slot: IntArray  # [D]


def _log_softmax(logits: Floats) -> tuple[Floats, Floats]:
    """Return log-probabilities `[D, V]` and their normaliser `[D]`."""
    largest = logits.max(axis=1, keepdims=True)
    # A row of -inf has no probabilities; 0 keeps its differences at -inf instead of NaN.
    largest = np.where(np.isneginf(largest), np.float32(0.0), largest)
    with np.errstate(divide="ignore"):
        normaliser = largest + np.log(np.exp(logits - largest).sum(axis=1, keepdims=True))
    return logits - normaliser, normaliser[:, 0]


def _accepted_lengths(accepted: npt.NDArray[np.bool_], drafts: _Drafts, num_reqs: int, width: int) -> IntArray:
    """Count each request's accepted drafts before its first rejected one, `[R]`."""
    table = np.zeros((num_reqs, width + 1), dtype=bool)
    table[drafts.request, drafts.step] = accepted
    return table.argmin(axis=1)


def _cumulative_log_ratio(log_ratio: Floats, drafts: _Drafts, num_reqs: int, width: int) -> Floats:
    """Return per draft the running ``min(sum, 0)`` of `log_ratio` `[D]` over the drafts of its request."""
    table = np.zeros((num_reqs, width), dtype=np.float32)
    table[drafts.request, drafts.step] = log_ratio
    running = np.zeros(num_reqs, dtype=np.float32)
    for step in range(width):
        running = np.minimum(running + table[:, step], np.float32(0.0))
        table[:, step] = running
    return table[drafts.request, drafts.step]


def _block_accepted_lengths(
    drafts: _Drafts,
    uniform: Floats,
    log_p: Floats,
    target_log_probs: Floats,
    draft_log_probs: Floats | None,
    num_reqs: int,
    width: int,
) -> IntArray:
    """Block verification (Sun et al., 2024): accept the longest prefix whose joint test passes, `[R]`."""
    ratio = np.exp(log_p)
    residual_mass = np.zeros(len(log_p), dtype=np.float32)
    # A draft followed by a real one of its request looks one position ahead.
    ahead = np.flatnonzero((drafts.request[1:] == drafts.request[:-1]) & (drafts.token[1:] >= 0))
    target_prob = np.exp(target_log_probs[ahead + 1])
    if draft_log_probs is None:
        token_prob = target_prob[np.arange(len(ahead)), drafts.token[ahead + 1]]
        residual_mass[ahead] = ratio[ahead] * (np.float32(1.0) - token_prob)
    else:
        surplus = ratio[ahead, None] * target_prob - np.exp(draft_log_probs[ahead + 1])
        residual_mass[ahead] = np.maximum(surplus, np.float32(0.0)).sum(axis=1)
    denominator = residual_mass + np.float32(1.0) - ratio
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = np.where(denominator > 0.0, residual_mass / denominator, np.float32(1.0))
    last = np.ones(len(log_p), dtype=bool)
    last[ahead] = False
    threshold[last] = ratio[last]

    # A placeholder ends the block; before it the longest passing prefix counts, not the first failure.
    table = np.zeros((num_reqs, width), dtype=bool)
    table[drafts.request, drafts.step] = uniform <= threshold
    valid = np.zeros((num_reqs, width + 1), dtype=bool)
    valid[drafts.request, drafts.step] = drafts.token >= 0
    table &= np.arange(width) < valid.argmin(axis=1)[:, None]
    return np.where(table.any(axis=1), width - table[:, ::-1].argmax(axis=1), 0)


def _residual_logits(target: Floats, log_p: Floats, draft_log_probs: Floats, target_normaliser: Floats) -> Floats:
    """Return log(max(p * target - draft, 0)) per row `[D, V]`, with log p `[D]` (0 unless blocks are verified)."""
    target_log_probs = target - target_normaliser[:, None] + log_p[:, None]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ratio = np.exp(draft_log_probs - target_log_probs)
        residual = target_log_probs + np.log1p(-ratio)
    return np.where(ratio < 1.0, residual, np.float32(-np.inf))


@replaces(
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils.rejection_sample",
    name="rejection sampling on a CPU",
    why="it launches six kernels that exchange partial sums for blocks of the vocabulary",
    how="replaced by one function over whole rows, under both names that it has, only where V2 runs on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature=(
        "target_logits draft_logits draft_sampled cu_num_logits pos idx_mapping expanded_idx_mapping "
        "expanded_local_pos temperature seed num_speculative_steps synthetic_conditional_rates use_fp64 "
        "use_block_verification contexts watermarking watermarking_skip_mask watermark_key [fly_window_size] "
        "[fly_entropy_threshold] [fly_entropy_top_k]"
    ),
    also=("vllm.v1.worker.gpu.spec_decode.rejection_sampler.rejection_sample",),
)
def rejection_sample(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_sampled: torch.Tensor,
    cu_num_logits: torch.Tensor,
    pos: torch.Tensor,
    idx_mapping: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    num_speculative_steps: int,
    synthetic_conditional_rates: torch.Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
    contexts: torch.Tensor | None = None,
    watermarking: torch.Tensor | None = None,
    watermarking_skip_mask: torch.Tensor | None = None,
    watermark_key: int | None = None,
    fly_window_size: int = 0,
    fly_entropy_threshold: float = 0.0,
    fly_entropy_top_k: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept a prefix of each request's drafts and draw one token after it; return `[R, N + 1]` int64 and counts `[R]`.

    `draft_logits` `[M, N, V]` (before temperature) are those that the drafts were drawn from; without them a draft was
    certain. `target_logits` `[L, V]` already carry the temperature.
    """
    if contexts is not None:
        raise NotImplementedError("watermarking is set, but model runner V2 on CPU without Triton has no watermarks")
    if fly_window_size:
        raise NotImplementedError("rejection_sample_method is fly, which model runner V2 on CPU without Triton lacks")
    assert synthetic_conditional_rates is None or not use_block_verification
    starts = cu_num_logits.numpy()
    num_reqs = len(starts) - 1
    request, step = rows_and_offsets(lengths_between(starts) - 1)
    row = starts[request] + step
    slots = idx_mapping.numpy()
    drafts = _Drafts(request, step, row, draft_sampled.numpy()[row + 1].astype(np.int64), slots[request])

    vocab_size = target_logits.shape[1]
    if draft_logits is not None:
        # A target vocabulary may be padded beyond the drafter's.
        vocab_size = min(vocab_size, draft_logits.shape[-1])
    target = target_logits[:, :vocab_size].float().numpy()
    temperatures = temperature.numpy()
    seeds, position = seed.numpy(), pos.numpy()
    greedy = temperatures[drafts.slot] == 0.0
    random = np.flatnonzero(~greedy)
    uniform = np.empty(0, dtype=np.float32)
    if len(random) or synthetic_conditional_rates is not None:
        draft_seeds = seeds[drafts.slot]
        if use_block_verification and noise_depends_on_step():
            draft_seeds = noise.seed_of_step(draft_seeds, step)
        uniform = noise.philox_uniform(draft_seeds, position[row])
    valid = drafts.token >= 0

    sampled = np.zeros((num_reqs, num_speculative_steps + 1), dtype=np.int64)
    proposed = np.maximum(drafts.token, 0)
    accepted = np.zeros(len(row), dtype=bool)
    if synthetic_conditional_rates is not None:
        accepted = uniform < synthetic_conditional_rates.numpy()[step]
    if greedy.any():
        best = target[row[greedy]].argmax(axis=1)
        if synthetic_conditional_rates is None:
            accepted[greedy] = best == proposed[greedy]
        # The largest target logit replaces a rejected greedy draft.
        kept = accepted[greedy] & valid[greedy]
        proposed[greedy] = np.where(kept, proposed[greedy], best)
    sampled[request, step] = proposed

    log_p = np.zeros(len(row), dtype=np.float32)
    lengths_of_random: IntArray | None = None
    draft_log_probs: Floats | None = None
    if len(random):
        chosen = (np.arange(len(random)), np.maximum(drafts.token[random], 0))
        target_log_probs, normaliser = _log_softmax(target[row[random]])
        log_ratio = target_log_probs[chosen]
        if draft_logits is not None:
            # Indexing copies, so the cached logits stay as the drafter left them.
            drawn_from = draft_logits[drafts.slot[random], step[random], :vocab_size].float().numpy()
            draft_log_probs, _ = _log_softmax(drawn_from / temperatures[drafts.slot[random], None])
            draft_score = draft_log_probs[chosen]
        else:
            draft_score = np.zeros(len(random), dtype=np.float32)
        if use_block_verification:
            ratio = np.where(valid[random], log_ratio - draft_score, np.float32(0.0))
            subset = _Drafts(request[random], step[random], row[random], drafts.token[random], drafts.slot[random])
            log_p[random] = _cumulative_log_ratio(ratio, subset, num_reqs, num_speculative_steps)
            lengths_of_random = _block_accepted_lengths(
                subset,
                uniform[random],
                log_p[random],
                target_log_probs,
                draft_log_probs,
                num_reqs,
                num_speculative_steps,
            )
        elif synthetic_conditional_rates is None:
            accepted[random] = log_ratio > np.log(uniform[random]) + draft_score

    lengths = _accepted_lengths(accepted & valid, drafts, num_reqs, num_speculative_steps)
    if lengths_of_random is not None:
        lengths = np.where(temperatures[slots] == 0.0, lengths, lengths_of_random)

    # One more token per request: after the last accepted draft, or instead of the rejected one.
    resampled_row = starts[:-1] + lengths
    is_bonus = resampled_row == starts[1:] - 1
    slot_temperature = temperatures[slots]
    resampled = np.flatnonzero(is_bonus | (slot_temperature != 0.0))
    scores = target[resampled_row[resampled]]
    # Entry of each rejected draft among the drafts: requests have one row more than drafts.
    entry = resampled_row - np.arange(num_reqs)
    corrected = np.flatnonzero(~is_bonus[resampled])
    corrected = corrected[valid[entry[resampled[corrected]]]]
    if len(corrected):
        rejected = entry[resampled[corrected]]
        if draft_log_probs is None:
            scores[corrected, drafts.token[rejected]] = -np.inf
        else:
            place = np.searchsorted(random, rejected)
            before = np.where(step[rejected] > 0, log_p[rejected - 1], np.float32(0.0))
            scores[corrected] = _residual_logits(scores[corrected], before, draft_log_probs[place], normaliser[place])
    if use_fp64:
        scores = scores.astype(np.float64)
    drawn = draw(
        scores,
        slot_temperature[resampled],
        seeds[slots[resampled]],
        position[resampled_row[resampled]],
        apply_temperature=False,
    )
    sampled[resampled, lengths[resampled]] = drawn
    return torch.from_numpy(sampled), torch.from_numpy((lengths + 1).astype(np.int32))
