"""Rows of logits at the nodes of draft trees, and what of their requests changes these logits."""

from typing import NamedTuple

from torch import Tensor


class Paths(NamedTuple):
    """``L`` rows of logits at the nodes of draft trees; a request's rows are in node order, and none is left out.

    ``S`` request slots, ``N`` drafted nodes of the largest tree.
    """

    slots: Tensor
    """The request slot of each row, ``[L]`` integers."""
    nodes: Tensor
    """The node of each row, ``[L]`` integers; 0: the root, whose token has been emitted."""
    tokens: Tensor
    """The token of each row's node, ``[L]`` integers."""
    parents: Tensor
    """By slot, ``[S, N + 1]`` int64. A node of padding, which is its own parent, may be given any logits."""
    levels: int
    """The most drafted tokens of a path."""


class Penalties(NamedTuple):
    """Of ``S`` request slots, as vLLM's ``PenaltiesState`` has them; ``V`` tokens."""

    repetition: Tensor
    """``[S]`` float32; 1: none."""
    frequency: Tensor
    """``[S]`` float32; 0: none."""
    presence: Tensor
    """``[S]`` float32; 0: none."""
    prompt_bits: Tensor
    """The prompts' tokens, as bits of ``[S, V / 32]`` int32."""
    output_counts: Tensor
    """How often the answers so far have each token, ``[S, V]`` int32."""


class BadWords(NamedTuple):
    """Of ``S`` request slots, as vLLM's ``BadWordsState`` has them; at most ``W`` words of ``T`` tokens in all."""

    tokens: Tensor
    """Of all words, one after the other, ``[S, T]`` int32."""
    offsets: Tensor
    """Where each word begins, ``[S, W + 1]`` int32."""
    counts: Tensor
    """How many words there are, ``[S]`` int32."""


class Thinking(NamedTuple):
    """Budgets for thinking of ``S`` request slots, as vLLM's ``ThinkingBudgetState`` has them, and three markers."""

    budgets: Tensor
    """Most tokens between the markers, ``[S]`` int32; -1: no budget."""
    last_starts: Tensor
    """The place in the text without drafts where the last marker of a beginning is, ``[S]`` int32; -1: nowhere."""
    last_ends: Tensor
    """The same of the last marker of an end."""
    start: Tensor
    """The marker of a beginning, ``[..]`` int32."""
    natural_end: Tensor
    """That of an end."""
    forced_end: Tensor
    """What is written where the budget is used up, token by token."""


class Said(NamedTuple):
    """The text of ``S`` request slots, without drafts."""

    tokens: Tensor
    """``[S, P]`` int32."""
    prompt_lens: Tensor
    """``[S]`` int32."""
    total_lens: Tensor
    """``[S]`` int32."""
