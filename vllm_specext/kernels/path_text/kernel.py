"""Penalties, bad words and budgets for thinking in Triton: a program for a block of a row's logits, for a row's bad
word, and for a row. Each walks from the row's node to its root."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.path_text.rows import BadWords, Paths, Penalties, Said, Thinking

BLOCK = 4096


@triton.jit
def _penalties_kernel(
    logits_ptr, slots_ptr, nodes_ptr, tokens_ptr, parents_ptr,
    repetition_ptr, frequency_ptr, presence_ptr, prompt_bits_ptr, counts_ptr,
    stride_logits, stride_parents, stride_bits, stride_counts, vocab_size, levels,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Grid ``(L, blocks of V)``."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    repetition = tl.load(repetition_ptr + slot)
    frequency = tl.load(frequency_ptr + slot)
    presence = tl.load(presence_ptr + slot)
    if (repetition == 1.0) & (frequency == 0.0) & (presence == 0.0):
        return
    token = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside = token < vocab_size
    counts = tl.load(counts_ptr + slot * stride_counts + token, mask=inside, other=0)
    node = tl.load(nodes_ptr + row).to(tl.int64)
    root = row - node
    # A node's ancestors come before it.
    for _ in range(tl.minimum(levels, node.to(tl.int32))):
        drafted = tl.load(tokens_ptr + root + node)
        counts += ((token == drafted) & (node > 0)).to(tl.int32)
        node = tl.where(node > 0, tl.load(parents_ptr + slot * stride_parents + node), 0)
    in_output = counts > 0
    logits = tl.load(logits_ptr + row * stride_logits + token, mask=inside, other=0.0)
    if repetition != 1.0:
        bits = tl.load(prompt_bits_ptr + slot * stride_bits + token // 32, mask=inside, other=0)
        in_prompt = ((bits >> (token % 32)) & 1) != 0
        # The arithmetic is that of vLLM's kernel, step by step: with another, last bits would differ from plain
        # decoding's.
        scale = tl.where(in_prompt | in_output, repetition, 1.0)
        logits *= tl.where(logits > 0, 1.0 / scale, scale)
    logits -= frequency * counts
    logits -= presence * in_output
    tl.store(logits_ptr + row * stride_logits + token, logits, mask=inside)


@triton.jit
def _bad_words_kernel(
    logits_ptr, slots_ptr, nodes_ptr, tokens_ptr, parents_ptr,
    words_ptr, offsets_ptr, num_words_ptr, text_ptr, prompt_lens_ptr, total_lens_ptr,
    stride_logits, stride_parents, stride_words, stride_offsets, stride_text,
):  # fmt: skip
    """Grid ``(L, words)``."""
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if word >= tl.load(num_words_ptr + slot):
        return
    start = tl.load(offsets_ptr + slot * stride_offsets + word)
    last = tl.load(offsets_ptr + slot * stride_offsets + word + 1) - 1
    total = tl.load(total_lens_ptr + slot)
    first_output = tl.load(prompt_lens_ptr + slot)
    node = tl.load(nodes_ptr + row).to(tl.int64)
    root = row - node
    place = total - 1  # of the emitted token that is looked at next
    matches = 1
    for back in range(last - start):
        expected = tl.load(words_ptr + slot * stride_words + last - 1 - back)
        is_drafted = node > 0
        drafted = tl.load(tokens_ptr + root + node)
        is_said = (node == 0) & (place >= first_output)
        said = tl.load(text_ptr + slot * stride_text + place, mask=is_said, other=-1)
        actual = tl.where(is_drafted, drafted, said)
        matches = tl.where(expected == actual, matches, 0)
        place -= (node == 0).to(tl.int32)
        node = tl.where(is_drafted, tl.load(parents_ptr + slot * stride_parents + node), 0)
    if matches != 0:
        banned = tl.load(words_ptr + slot * stride_words + last)
        tl.store(logits_ptr + row * stride_logits + banned, -float("inf"))


@triton.jit
def _ends_with(marker_ptr, node, place, tokens_ptr, root, parents_ptr, text_ptr, LENGTH: tl.constexpr):
    """Whether so many tokens of the marker are the last ones of the text up to ``place``, whose token is the node's."""
    same = place + 1 >= LENGTH
    for back in tl.static_range(LENGTH):
        expected = tl.load(marker_ptr + LENGTH - 1 - back)
        is_drafted = node > 0
        drafted = tl.load(tokens_ptr + root + node)
        said = tl.load(text_ptr + place - back, mask=(node == 0) & (place >= back), other=-1)
        same = same & (expected == tl.where(is_drafted, drafted, said))
        node = tl.where(is_drafted, tl.load(parents_ptr + node), 0)
    return same


@triton.jit
def _thinking_kernel(
    logits_ptr, slots_ptr, nodes_ptr, tokens_ptr, parents_ptr,
    budgets_ptr, last_starts_ptr, last_ends_ptr, start_ptr, natural_end_ptr, forced_end_ptr,
    text_ptr, total_lens_ptr, stride_logits, stride_parents, stride_text, levels,
    START: tl.constexpr, NATURAL_END: tl.constexpr, FORCED_END: tl.constexpr,
):  # fmt: skip
    """Grid ``(L,)``."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    budget = tl.load(budgets_ptr + slot)
    if budget < 0:
        return
    node = tl.load(nodes_ptr + row).to(tl.int64)
    root = row - node
    parents_ptr += slot * stride_parents
    text_ptr += slot * stride_text
    steps = tl.minimum(levels, node.to(tl.int32))
    length = tl.load(total_lens_ptr + slot)
    before = node
    for _ in range(steps):
        length += (before > 0).to(tl.int32)
        before = tl.where(before > 0, tl.load(parents_ptr + before), 0)
    # A marker that ends among the drafted tokens is later than those of the text; of these the last is the first that
    # the walk meets.
    start, end = -1, -1
    here, place = node, length - 1
    for _ in range(steps):
        is_drafted = here > 0
        begins = _ends_with(start_ptr, here, place, tokens_ptr, root, parents_ptr, text_ptr, START)
        start = tl.where(is_drafted & begins & (start < 0), place - START + 1, start)
        ends = _ends_with(natural_end_ptr, here, place, tokens_ptr, root, parents_ptr, text_ptr, NATURAL_END)
        end = tl.where(is_drafted & ends & (end < 0), place - NATURAL_END + 1, end)
        here = tl.where(is_drafted, tl.load(parents_ptr + here), 0)
        place -= is_drafted.to(tl.int32)
    start = tl.where(start < 0, tl.load(last_starts_ptr + slot), start)
    end = tl.where(end < 0, tl.load(last_ends_ptr + slot), end)
    if (start < 0) | (start <= end) | (length - start - START < budget):
        return
    written = 0
    for count in tl.static_range(1, FORCED_END):
        is_written = _ends_with(forced_end_ptr, node, length - 1, tokens_ptr, root, parents_ptr, text_ptr, count)
        written = tl.where(is_written, count, written)
    forced = tl.load(forced_end_ptr + written)
    tl.store(logits_ptr + row * stride_logits + forced, 1.0e9)


def penalise(logits: Tensor, paths: Paths, penalties: Penalties) -> None:
    """As ``path_text.penalise`` says."""
    rows, vocab_size = logits.shape
    _penalties_kernel[rows, triton.cdiv(vocab_size, BLOCK)](
        logits, *paths[:4], *penalties, logits.stride(0), paths.parents.stride(0), penalties.prompt_bits.stride(0),
        penalties.output_counts.stride(0), vocab_size, paths.levels, BLOCK_V=BLOCK,
    )  # fmt: skip


def ban(logits: Tensor, paths: Paths, words: BadWords, said: Said, most: int) -> None:
    """As ``path_text.ban`` says."""
    _bad_words_kernel[len(logits), most](
        logits, *paths[:4], *words, *said, logits.stride(0), paths.parents.stride(0), words.tokens.stride(0),
        words.offsets.stride(0), said.tokens.stride(0),
    )  # fmt: skip


def end_thinking(logits: Tensor, paths: Paths, thinking: Thinking, said: Said) -> None:
    """As ``path_text.end_thinking`` says."""
    lengths = (len(marker) for marker in (thinking.start, thinking.natural_end, thinking.forced_end))
    _thinking_kernel[(len(logits),)](
        logits, *paths[:4], *thinking, said.tokens, said.total_lens, logits.stride(0), paths.parents.stride(0),
        said.tokens.stride(0), paths.levels, *lengths,
    )  # fmt: skip
