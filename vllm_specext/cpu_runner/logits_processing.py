"""Bodies for the native logits processors: bias, allowed ids, minimum length, penalties and bad words.

Counterparts: ``sample/logit_bias.py``, ``sample/penalties.py``, ``sample/bad_words.py``.
Shapes: `L` logits rows, `M` request slots, `V` vocabulary. `logits` `[L, V]` is float32 and changed in place;
`expanded_idx_mapping` `[L]` gives each row its slot, `expanded_local_pos` `[L]` its place among its request's rows.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import numpy as np
import torch

from vllm_specext.cpu_runner.ragged import IntArray, rows_and_offsets
from vllm_specext.kernels.path_text import naive


def _listed_tokens(rows: IntArray, slots: IntArray, counts: torch.Tensor, lists: torch.Tensor) -> tuple[IntArray, ...]:
    """Flatten the per-slot token lists of `rows`: their logits row, slot, index in the list and token id."""
    row, index = rows_and_offsets(counts.numpy()[slots])
    return rows[row], slots[row], index, lists.numpy()[slots[row], index]


def bias(
    logits: torch.Tensor,
    logits_stride: int,
    vocab_size: int,
    expanded_idx_mapping: torch.Tensor,
    num_allowed_token_ids: torch.Tensor,
    allowed_token_ids: torch.Tensor,
    allowed_token_ids_stride: int,
    num_logit_bias: torch.Tensor,
    bias_token_ids: torch.Tensor,
    bias_token_ids_stride: int,
    biases: torch.Tensor,
    bias_stride: int,
    pos: torch.Tensor,
    min_lens: torch.Tensor,
    num_stop_token_ids: torch.Tensor,
    restore_when_all_masked: torch.Tensor,
    stop_token_ids: torch.Tensor,
    stop_token_ids_stride: int,
    BLOCK_SIZE: int,
    LOGITS_BLOCK_SIZE: int,
    CHECK_ALL_MASKED_ROWS: bool,
) -> None:
    """Keep allowed ids only, add biases, and mask stop ids before the minimum length, in this order."""
    scores = logits.numpy()
    slots = expanded_idx_mapping.numpy()
    all_rows = np.arange(len(slots))

    row, _, _, token = _listed_tokens(all_rows, slots, num_allowed_token_ids, allowed_token_ids)
    kept = scores[row, token]
    scores[num_allowed_token_ids.numpy()[slots] > 0] = -np.inf
    scores[row, token] = kept

    row, slot, index, token = _listed_tokens(all_rows, slots, num_logit_bias, bias_token_ids)
    scores[row, token] += biases.numpy()[slot, index]

    short = np.flatnonzero(pos.numpy() + 1 < min_lens.numpy()[slots])
    row, slot, _, token = _listed_tokens(short, slots[short], num_stop_token_ids, stop_token_ids)
    stopped = scores[row, token]
    scores[row, token] = -np.inf
    if CHECK_ALL_MASKED_ROWS:
        # A grammar that allows nothing but stop tokens would otherwise leave an empty row.
        restored = (restore_when_all_masked.numpy()[slot] != 0) & np.isneginf(scores.max(axis=1))[row]
        restored &= np.isfinite(stopped)
        scores[row[restored], token[restored]] = stopped[restored]


def penalties(
    logits: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping: torch.Tensor,
    token_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    repetition_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
    presence_penalty: torch.Tensor,
    prompt_bin_mask: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts: torch.Tensor,
    output_bin_counts_stride: int,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Apply repetition, frequency and presence penalties; drafts before a row (`token_ids` `[L]`) count as output."""
    drafted = naive.drafted_in_chains(expanded_local_pos, token_ids)
    penalties_of_slots = repetition_penalty, frequency_penalty, presence_penalty
    naive.penalise(logits, expanded_idx_mapping, drafted, *penalties_of_slots, prompt_bin_mask, output_bin_counts)


def bincount(
    expanded_idx_mapping: torch.Tensor,
    all_token_ids: torch.Tensor,
    all_token_ids_stride: int,
    prompt_len: torch.Tensor,
    prefill_len: torch.Tensor,
    prompt_bin_mask: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts: torch.Tensor,
    output_bin_counts_stride: int,
    BLOCK_SIZE: int,
) -> None:
    """Record prompt tokens in `prompt_bin_mask` `[M, V / 32]`, re-computed output in `output_bin_counts` `[M, V]`."""
    slots = expanded_idx_mapping.numpy()
    row, position = rows_and_offsets(prefill_len.numpy()[slots])
    token = all_token_ids.numpy()[slots[row], position]
    is_prompt = position < prompt_len.numpy()[slots][row]

    packed = prompt_bin_mask.numpy()
    seen = np.zeros((len(slots), packed.shape[1] * 32), dtype=bool)
    seen[row[is_prompt], token[is_prompt]] = True
    packed[slots] |= np.packbits(seen, axis=1, bitorder="little").view(np.int32)
    np.add.at(output_bin_counts.numpy(), (slots[row[~is_prompt]], token[~is_prompt]), 1)


def bad_words(
    logits: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping: torch.Tensor,
    bad_word_token_ids: torch.Tensor,
    bad_word_token_ids_stride: int,
    bad_word_offsets: torch.Tensor,
    bad_word_offsets_stride: int,
    num_bad_words: torch.Tensor,
    all_token_ids: torch.Tensor,
    all_token_ids_stride: int,
    prompt_len: torch.Tensor,
    total_len: torch.Tensor,
    input_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
) -> None:
    """Mask the last token of every bad word whose other tokens end the output so far, drafts (`input_ids`) included."""
    drafted = naive.drafted_in_chains(expanded_local_pos, input_ids)
    words = bad_word_token_ids, bad_word_offsets, num_bad_words
    naive.ban(logits, expanded_idx_mapping, drafted, *words, all_token_ids, prompt_len, total_len)
