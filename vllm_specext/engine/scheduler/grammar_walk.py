"""A grammar's walk over a draft tree: which tokens may follow each node.

vLLM advances the grammar of a structured output along a draft, which is a chain, and fills a mask of allowed tokens at
each row. Over a tree the grammar goes from a node to its children and back. The mask of a node is thereby the one that
plain decoding has after the path to it. Where a request still reasons, its grammar begins on each path where vLLM says
that it begins.
Shapes: ``N`` drafted nodes, ``V`` tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.reasoning import ReasoningParser


@dataclass(frozen=True)
class DraftedTree:
    tokens: list[int]
    """Of nodes 1 to ``N``; the root is node 0."""
    parents: list[int]
    """Of the same nodes, each before its children; padding is its own parent."""

    def first(self, nodes: int) -> "DraftedTree":
        """What a request keeps of the tree that has room for so many ``nodes``."""
        return DraftedTree(self.tokens[:nodes], self.parents[:nodes])

    def children(self) -> list[list[int]]:
        """By node. Padding is nobody's child, nor is what has no token."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=False), 1):
            if token >= 0 and parent < node:
                found[parent].append(node)
        return found


class Start(NamedTuple):
    """Where a grammar begins on a path, counted in its drafted tokens; as vLLM's ``ConstraintBounds``."""

    grammar_start: int
    """The first token that the grammar is advanced with."""
    constraint_start: int
    """The depth of the first node that it masks."""


class OneText:
    """The tokens of a request that reasons. vLLM copies them for every path that it is asked about, and puts the path
    after them; here that is one list, which is cut back."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens = list(tokens)
        self._length = len(self._tokens)

    def copy(self) -> list[int]:
        del self._tokens[self._length :]
        return self._tokens


class Reasoning:
    """A vLLM ``Request`` with ``OneText``."""

    def __init__(self, request: Any) -> None:
        self.structured_output_request = request.structured_output_request
        self.prompt_token_ids = request.prompt_token_ids
        self.all_token_ids = OneText(request.all_token_ids)


def reads_all_text(reasoner: Any) -> bool:
    """Whether vLLM's ``ReasoningParser`` reads the whole text to say whether reasoning ends in its last tokens."""
    if isinstance(reasoner, ParserEngineReasoningAdapter) and reasoner.reasoning_end_token_ids:
        return False  # it is asked where the end is among these tokens
    return type(reasoner).is_reasoning_end_streaming is ReasoningParser.is_reasoning_end_streaming


def starts_of(manager: Any, request: Any, tree: DraftedTree, children: list[list[int]]) -> list[Start]:
    """By node, ``[N + 1]``. ``manager``: vLLM's ``StructuredOutputManager``; ``request``: its ``Request``."""
    nodes = len(children)
    root = Start(*manager._get_constraint_bounds(request, ()))
    if root.constraint_start == 0:
        return [root] * nodes
    starts: list[Start | None] = [None] * nodes
    reasoning = Reasoning(request)
    for leaf in (node for node in range(nodes) if not children[node]):
        path = []
        node = leaf
        while node and tree.parents[node - 1] < node:
            path.append(node)
            node = tree.parents[node - 1]
        if path:
            start = Start(*manager._get_constraint_bounds(reasoning, [tree.tokens[one - 1] for one in reversed(path)]))
            for one in path:
                # A start that counts for a node is on the part that its paths share; one of them may end reasoning and
                # begin it again later.
                starts[one] = min(start, starts[one] or start)
    return [root if start is None else start for start in starts]


class GrammarWalk:
    """One request's, over one tree."""

    def __init__(self, name: str, grammar: Any, tree: DraftedTree, masks: np.ndarray) -> None:
        """``name``: the request's; ``grammar``: vLLM's ``StructuredOutputGrammar`` at the root, where it is afterwards
        too. ``masks``: ``[N + 1, V / 32]`` int32, changed in place: the root's row is what vLLM made it, and all others
        allow every token."""
        self._name, self._grammar, self._tokens = name, grammar, tree.tokens
        self._masks, self._rows = torch.from_numpy(masks), masks

    def fill(self, children: list[list[int]], starts: list[Start]) -> None:
        """Fill the rows of all nodes that the grammar lets come. The others keep allowing every token: the row before
        them forbids theirs, or plain decoding would fail there too, where a token that ends reasoning is refused."""
        self._go_on(0, 0, children, starts)

    def _go_on(self, node: int, depth: int, children: list[list[int]], starts: list[Start]) -> None:
        for child in children[node]:
            grammar_start, constraint_start = starts[child]
            # A grammar that has ended allows every token after it.
            advances = depth >= grammar_start and not self._grammar.is_terminated()
            if advances and not self._advance(node, self._tokens[child - 1], depth >= constraint_start):
                continue
            if depth + 1 < constraint_start:
                self._rows[child] = self._rows[0]  # still reasons, as the root does
            elif not self._grammar.is_terminated():
                self._grammar.fill_bitmask(self._masks, child)
            self._go_on(child, depth + 1, children, starts)
            if advances:
                self._grammar.rollback(1)

    def _advance(self, node: int, token: int, is_masked: bool) -> bool:
        """Advance the grammar with the ``token`` of a child of ``node``, if it may come there. Asking the mask spares
        the lines that grammars log of tokens that they refuse."""
        if is_masked:
            word = token >> 5
            allowed = word < self._rows.shape[1] and int(self._rows[node, word]) >> (token & 31) & 1
        else:
            allowed = bool(self._grammar.validate_tokens([token]))
        return bool(allowed and self._grammar.accept_tokens(self._name, [token]))
