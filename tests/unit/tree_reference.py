"""Draft trees the slow way, in plain Python, as EAGLE-2 describes them; and random trees for property tests.

A node's path is the tuple of drafted tokens from the root's child to the node.
"""

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

Path = tuple[int, ...]
Drafter = Callable[[Path], list[tuple[int, float]]]
"""Path of a node, () for the root -> its best tokens with their log-probabilities, best first."""


class Candidate(NamedTuple):
    path: Path
    score: float
    """Cumulative log-probability in float32."""


def float32(number: float) -> float:
    return struct.unpack("f", struct.pack("f", number))[0]


def propose(drafter: Drafter, node: Candidate) -> list[Candidate]:
    return [Candidate((*node.path, token), float32(node.score + log_prob)) for token, log_prob in drafter(node.path)]


def best(candidates: list[Candidate], count: int) -> list[Candidate]:
    """Highest score first, the earlier one where they tie."""
    order = sorted(range(len(candidates)), key=lambda index: (-candidates[index].score, index))
    return [candidates[index] for index in order[:count]]


def expand(drafter: Drafter, k: int, levels: int) -> tuple[list[list[Candidate]], list[list[Candidate]]]:
    """All candidates and the frontier, both by level."""
    candidates = [propose(drafter, Candidate((), 0.0))]
    frontiers = [candidates[0]]
    for _ in range(levels - 1):
        candidates.append([child for node in frontiers[-1] for child in propose(drafter, node)])
        frontiers.append(best(candidates[-1], k))
    return candidates, frontiers


def best_tree(candidates: list[list[Candidate]], nodes: int) -> list[Candidate]:
    """The best candidates of all levels, best first."""
    return best([node for level in candidates for node in level], nodes)


def accepted(nodes: list[Candidate]) -> float:
    """How many of a tree's nodes are accepted, if the probabilities of their paths are right."""
    return sum(math.exp(node.score) for node in nodes)


class Tree(NamedTuple):
    """Node 0 is the root; ``tokens[0]`` is of no meaning."""

    parents: list[int]
    depths: list[int]
    tokens: list[int]


def tree_of(paths: list[Path]) -> Tree:
    node_of = {(): 0} | {path: node for node, path in enumerate(paths, 1)}
    return Tree(
        [0, *(node_of[path[:-1]] for path in paths)],
        [0, *(len(path) for path in paths)],
        [0, *(path[-1] for path in paths)],
    )


def ancestors(parents: list[int], node: int) -> set[int]:
    """The node itself, its ancestors and the root."""
    seen = {node}
    while node != 0:
        node = parents[node]
        seen.add(node)
    return seen


def walk(tree: Tree, drawn: list[int], levels: int) -> tuple[list[int], list[int]]:
    """Emitted tokens and path of accepted nodes, the root included; the tree has as many nodes as ``drawn``."""
    path = [0]
    while len(path) <= levels:
        children = [
            node
            for node in range(1, len(drawn))
            if tree.parents[node] == path[-1] and tree.tokens[node] == drawn[path[-1]]
        ]
        if not children:
            break
        path.append(children[0])
    return [drawn[node] for node in path], path


@st.composite
def random_trees(draw: DrawFn, nodes: int, vocabulary: int) -> Tree:
    """Trees of exactly ``nodes`` drafted nodes, parents first, siblings with distinct tokens."""
    paths: list[Path] = []
    for _ in range(nodes):
        free = [(*parent, token) for parent in [(), *paths] for token in range(vocabulary)]
        paths.append(draw(st.sampled_from([path for path in free if path not in paths])))
    return tree_of(paths)


def batches(nodes: SearchStrategy[int], requests: int, vocabulary: int = 3) -> SearchStrategy[list[Tree]]:
    """One to ``requests`` random trees of the same size."""
    return nodes.flatmap(lambda count: st.lists(random_trees(count, vocabulary), min_size=1, max_size=requests))
