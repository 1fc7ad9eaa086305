"""Penalties, bad words and budgets for thinking in numpy, for rows on a CPU whose drafted text is given: of trees or of
chains.

Shapes: `L` logits rows, `S` request slots, `V` vocabulary, `D` the most drafted tokens before a row. `drafted` `[L, D]`
has the tokens before each row, the nearest first, and -1 after the last.
"""

import numpy as np
from torch import Tensor

FORCED = 1.0e9
"""vLLM's logit of a token that is forced, above all others."""


def drafted_before(slots: Tensor, nodes: Tensor, tokens: Tensor, parents: Tensor, levels: int) -> np.ndarray:
    """The tokens of the paths to each row's node, without the root's; the arguments are those of `Paths`."""
    node, parent_of, of_row = nodes.numpy().astype(np.int64), parents.numpy(), tokens.numpy()
    root = np.arange(len(node)) - node
    found = np.full((len(node), levels), -1)
    for level in range(levels):
        inside = node > 0
        if not inside.any():
            break
        found[:, level] = np.where(inside, of_row[root + node], -1)
        node = np.where(inside, parent_of[slots.numpy(), node], 0)
    return found


def drafted_in_chains(places: Tensor, tokens: Tensor) -> np.ndarray:
    """The same of chains: `places` `[L]` of rows in their requests, and the rows' `tokens` `[L]`."""
    place = places.numpy()
    earlier = np.arange(place.max(initial=0))
    rows = np.arange(len(place))[:, None] - earlier
    return np.where(earlier < place[:, None], tokens.numpy()[np.maximum(rows, 0)], -1)


def penalise(
    logits: Tensor,
    slots: Tensor,
    drafted: np.ndarray,
    repetition_penalty: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    prompt_bits: Tensor,
    output_counts: Tensor,
) -> None:
    """As `path_text.penalise` says; the penalties are those of `Penalties`."""
    slot, vocab_size = slots.numpy(), logits.shape[1]
    repetition = repetition_penalty.numpy()[slot]
    frequency = frequency_penalty.numpy()[slot]
    presence = presence_penalty.numpy()[slot]
    rows = np.flatnonzero((repetition != 1.0) | (frequency != 0.0) | (presence != 0.0))

    counts = output_counts.numpy()[slot[rows], :vocab_size]
    row, nth = np.nonzero(drafted[rows] >= 0)
    np.add.at(counts, (row, drafted[rows[row], nth]), 1)
    in_output = counts > 0
    in_prompt = np.unpackbits(
        prompt_bits.numpy()[slot[rows]].view(np.uint8), axis=1, count=vocab_size, bitorder="little"
    ).view(bool)

    scores = logits.numpy()[rows]
    scale = np.where(in_prompt | in_output, repetition[rows, None], np.float32(1.0))
    scores *= np.where(scores > 0, np.float32(1.0) / scale, scale)
    scores -= frequency[rows, None] * counts.astype(np.float32)
    scores -= presence[rows, None] * in_output.astype(np.float32)
    logits.numpy()[rows] = scores


def ban(
    logits: Tensor,
    slots: Tensor,
    drafted: np.ndarray,
    word_tokens: Tensor,
    word_offsets: Tensor,
    num_words: Tensor,
    all_token_ids: Tensor,
    prompt_lens: Tensor,
    total_lens: Tensor,
) -> None:
    """As `path_text.ban` says; the words are those of `BadWords`, the text that of `Said`."""
    slot, words, offsets, text = slots.numpy(), word_tokens.numpy(), word_offsets.numpy(), all_token_ids.numpy()
    total, answered = total_lens.numpy(), (total_lens - prompt_lens).numpy()
    in_draft = (drafted >= 0).sum(axis=1)
    row, word = np.nonzero(np.arange(num_words.numpy()[slot].max(initial=0)) < num_words.numpy()[slot][:, None])
    start, end = offsets[slot[row], word], offsets[slot[row], word + 1]
    matches = np.ones(len(row), dtype=bool)
    for back in range((end - start - 1).max(initial=0)):
        asked = np.flatnonzero(matches & (back < end - start - 1))
        of_row = row[asked]
        expected = words[slot[of_row], end[asked] - 2 - back]
        before = back - in_draft[of_row]  # in the answer, counted from its end
        said = text[slot[of_row], np.maximum(total[slot[of_row]] - 1 - before, 0)]
        actual = np.where(before < answered[slot[of_row]], said, -1)
        if back < drafted.shape[1]:
            actual = np.where(before < 0, drafted[of_row, back], actual)
        matches[asked] = expected == actual
    logits.numpy()[row[matches], words[slot[row], end - 1][matches]] = -np.inf


def end_thinking(
    logits: Tensor,
    slots: Tensor,
    drafted: np.ndarray,
    budgets: Tensor,
    all_token_ids: Tensor,
    total_lens: Tensor,
    start: Tensor,
    natural_end: Tensor,
    forced_end: Tensor,
) -> None:
    """As `path_text.end_thinking` says; the budgets and markers are those of `Thinking`, the text that of `Said`."""
    slot, end = slots.numpy(), forced_end.numpy()
    budget = budgets.numpy()[slot]
    for row in np.flatnonzero(budget >= 0):
        said = all_token_ids.numpy()[slot[row], : total_lens.numpy()[slot[row]]]
        text = np.concatenate((said, drafted[row][drafted[row] >= 0][::-1]))
        begun = _last_place(text, start.numpy())
        if begun < 0 or begun <= _last_place(text, natural_end.numpy()):
            continue
        if len(text) - begun - len(start) < budget[row]:
            continue
        written = [n for n in range(1, min(len(end) - 1, len(text)) + 1) if (text[-n:] == end[:n]).all()]
        logits[int(row), int(end[max(written, default=0)])] = FORCED


def _last_place(text: np.ndarray, marker: np.ndarray) -> int:
    """Where `marker` begins for the last time in `text`, or -1."""
    if len(text) < len(marker):
        return -1
    found = np.flatnonzero((np.lib.stride_tricks.sliding_window_view(text, len(marker)) == marker).all(axis=1))
    return int(found[-1]) if len(found) else -1
