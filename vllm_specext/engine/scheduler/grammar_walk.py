"""A grammar's walk over a draft tree: which tokens may follow each node.

vLLM advances the grammar of a structured output along a draft, which is a chain, and fills a mask of allowed tokens at
each row. Over a tree the grammar goes from a node to its children and back. The mask of a node is thereby the one that
plain decoding has after the path to it. Where a request still reasons, its grammar begins on each path where vLLM says
that it begins.
Shapes: ``N`` drafted nodes, ``V`` tokens.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

ALL_TOKENS = -1
"""A word of a mask that allows its 32 tokens."""


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


def starts_of(manager: Any, request: Any, tree: DraftedTree, children: list[list[int]]) -> list[Start]:
    """By node, ``[N + 1]``. ``manager``: vLLM's ``StructuredOutputManager``; ``request``: its ``Request``."""
    nodes = len(children)
    root = Start(*manager._get_constraint_bounds(request, ()))
    if root.constraint_start == 0:
        return [root] * nodes
    starts: list[Start | None] = [None] * nodes
    for leaf in (node for node in range(nodes) if not children[node]):
        path = []
        node = leaf
        while node and tree.parents[node - 1] < node:
            path.append(node)
            node = tree.parents[node - 1]
        if path:
            start = Start(*manager._get_constraint_bounds(request, [tree.tokens[one - 1] for one in reversed(path)]))
            for one in path:
                starts[one] = starts[one] or start
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
        """Fill the rows of all nodes that can be reached. The others keep allowing every token: no token of theirs is
        accepted, because their parent's row forbids it."""
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
            allowed = int(self._rows[node, token >> 5]) >> (token & 31) & 1
        else:
            allowed = bool(self._grammar.validate_tokens([token]))
        return bool(allowed and self._grammar.accept_tokens(self._name, [token]))
