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
    slots = expanded_idx_mapping.numpy()
    repetition = repetition_penalty.numpy()[slots]
    frequency = frequency_penalty.numpy()[slots]
    presence = presence_penalty.numpy()[slots]
    rows = np.flatnonzero((repetition != 1.0) | (frequency != 0.0) | (presence != 0.0))
    slots = slots[rows]

    counts = output_bin_counts.numpy()[slots, :vocab_size]
    drafted = expanded_local_pos.numpy()[rows]
    row, offset = rows_and_offsets(drafted)
    np.add.at(counts, (row, token_ids.numpy()[(rows - drafted)[row] + offset + 1]), 1)
    in_output = counts > 0
    in_prompt = np.unpackbits(
        prompt_bin_mask.numpy()[slots].view(np.uint8), axis=1, count=vocab_size, bitorder="little"
    ).view(bool)

    scores = logits.numpy()[rows, :vocab_size]
    scale = np.where(in_prompt | in_output, repetition[rows, None], np.float32(1.0))
    scores *= np.where(scores > 0, np.float32(1.0) / scale, scale)
    scores -= frequency[rows, None] * counts.astype(np.float32)
    scores -= presence[rows, None] * in_output.astype(np.float32)
    logits.numpy()[rows, :vocab_size] = scores


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
    slots = expanded_idx_mapping.numpy()
    row, word = rows_and_offsets(num_bad_words.numpy()[slots])
    slot = slots[row]
    offsets = bad_word_offsets.numpy()
    start, end = offsets[slot, word], offsets[slot, word + 1]
    prefix_len = end - start - 1
    first_output = prompt_len.numpy()[slot]
    output_len = total_len.numpy()[slot] - first_output
    drafted = expanded_local_pos.numpy()[row]
    fits = np.flatnonzero(prefix_len <= output_len + drafted)

    # One entry per (row, bad word, prefix token).
    pair, offset = rows_and_offsets(prefix_len[fits])
    pair = fits[pair]
    words, known, drafts = bad_word_token_ids.numpy(), all_token_ids.numpy(), input_ids.numpy()
    expected = words[slot[pair], start[pair] + offset]
    position = (output_len + drafted - prefix_len)[pair] + offset
    in_draft = position - output_len[pair]
    # Row `row - drafted` holds the last committed token, so draft number d sits d + 1 rows after it.
    draft_row = np.maximum((row - drafted)[pair] + in_draft + 1, 0)
    known_column = first_output[pair] + np.minimum(position, output_len[pair] - 1)
    actual = np.where(in_draft >= 0, drafts[np.minimum(draft_row, len(drafts) - 1)], known[slot[pair], known_column])
    mismatches = np.bincount(pair, weights=expected != actual, minlength=len(row))
    matched = fits[mismatches[fits] == 0]
    last_token = words[slot[matched], end[matched] - 1]
    logits.numpy()[row[matched], last_token] = -np.inf
