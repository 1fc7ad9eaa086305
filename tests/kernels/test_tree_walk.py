"""The verification walks against plain loops over random trees and chains.

Every test here runs in torch and in C++, with the Triton kernels on a GPU, and with these under Triton's interpreter
(``cases/case_tree_walk.py``).
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bodies import BODIES, choose, fill_new_memory
from torch import Tensor

from vllm_specext.kernels import tree_walk

VOCABULARY = 4

Walk = Callable[..., tuple[Tensor, ...]]


@pytest.fixture(params=BODIES)
def walks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Walk, Walk]:
    """``accept_tree`` and ``accept_chain`` of tensors on the CPU, wherever the walk takes place."""
    choose(request.param, monkeypatch)
    if request.param != "GPU":
        fill_new_memory(monkeypatch)
        return tree_walk.accept_tree, tree_walk.accept_chain
    return on_gpu(tree_walk.accept_tree), on_gpu(tree_walk.accept_chain)


def on_gpu(walk: Walk) -> Walk:
    def run(*arguments: Any) -> tuple[Tensor, ...]:
        return tuple(out.cpu() for out in walk(*(a.cuda() if isinstance(a, Tensor) else a for a in arguments)))

    return run


class Trees:
    """Random trees of ``nodes`` drafted nodes, of which a request has ``lengths`` rows, and what is drawn there."""

    def __init__(self, seed: int, nodes: int, lengths: list[int], invalid: float = 0.0) -> None:
        rng = random.Random(seed)
        self.parents, self.depths, drafted, drawn = [], [], [], []
        for length in lengths:
            parents, depths, tokens = [0], [0], [VOCABULARY]
            while len(parents) <= nodes:
                parent = rng.choice([0, len(parents) - 1, rng.randrange(len(parents))])  # wide, deep, anything
                siblings = [token for at, token in zip(parents[1:], tokens[1:], strict=True) if at == parent]
                if len(siblings) < VOCABULARY:
                    tokens.append(rng.choice([token for token in range(VOCABULARY) if token not in siblings]))
                    parents.append(parent)
                    depths.append(depths[parent] + 1)
            self.parents.append(parents)
            self.depths.append(depths)
            tokens = [-1 if rng.random() < invalid else token for token in tokens]
            drafted.append(tokens[:length])
            drawn.append([self._draw(rng, node, parents, tokens) for node in range(length)])
        self.drawn, self.drafted, self.levels = drawn, drafted, max(map(max, self.depths))

    @staticmethod
    def _draw(rng: random.Random, node: int, parents: list[int], tokens: list[int]) -> int:
        """A drafted token more often than not, so that paths get long."""
        children = [tokens[child] for child in range(1, len(parents)) if parents[child] == node and tokens[child] >= 0]
        return rng.choice(children) if children and rng.random() < 0.9 else rng.randrange(VOCABULARY)

    def arguments(self, levels: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """Trees in wider tensors, as a cut-out of the slots' would be; rows after those of the requests are wild."""
        drawn, drafted = (
            torch.tensor([*(token for row in rows for token in row), *[0] * 5]).to(dtype)
            for rows in (self.drawn, self.drafted)
        )
        bounds = torch.tensor([0, *map(len, self.drawn)]).cumsum(0).to(torch.int32)
        parents = torch.nn.functional.pad(torch.tensor(self.parents), (0, 3), value=1 << 20)[:, :-3]
        return drawn, drafted, bounds, parents, levels

    def expected(self, request: int, levels: int) -> tuple[list[int], int, list[int]]:
        path, drawn, drafted = [0], self.drawn[request], self.drafted[request]
        while len(path) <= levels:
            children = [
                node
                for node in range(1, len(drawn))
                if self.parents[request][node] == path[-1] and drafted[node] == drawn[path[-1]]
            ]
            if not children:
                break
            path.append(children[0])
        padded = path + [0] * (levels + 1 - len(path))
        return [drawn[node] for node in padded], len(path), padded


def check(walk: Walk, trees: Trees, levels: int, dtype: torch.dtype = torch.int64) -> list[int]:
    """How many tokens each request got."""
    emitted, num_sampled, path = walk(*trees.arguments(levels, dtype))
    assert (emitted.dtype, num_sampled.dtype, path.dtype) == (dtype, torch.int32, torch.int64)
    expected = [trees.expected(request, levels) for request in range(len(trees.drawn))]
    assert emitted.tolist() == [tokens for tokens, _, _ in expected]
    assert num_sampled.tolist() == [count for _, count, _ in expected]
    assert path.tolist() == [nodes for _, _, nodes in expected]
    return num_sampled.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_walked_as_by_a_plain_loop(walks: tuple[Walk, Walk], seed: int) -> None:
    """Whole and truncated trees, and requests without a draft, in one batch."""
    nodes = [1, 7, 24, 60][seed % 4]
    rng = random.Random(seed)
    trees = Trees(seed, nodes, [nodes + 1, 1, *(rng.randint(1, nodes + 1) for _ in range(5))], invalid=0.05)
    check(walks[0], trees, trees.levels)


@pytest.mark.parametrize("nodes", [30, 31, 32, 127, 255])
def test_trees_of_any_size_are_walked(walks: tuple[Walk, Walk], nodes: int) -> None:
    trees = Trees(nodes, nodes, [nodes + 1] * 16)
    assert max(check(walks[0], trees, trees.levels, torch.int32)) > 3


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_the_walk_ends_after_the_last_level(walks: tuple[Walk, Walk], levels: int) -> None:
    trees = Trees(3, 24, [25] * 16)
    assert trees.levels > 3
    assert max(check(walks[0], trees, levels)) == levels + 1


def test_a_wrong_parent_shows(walks: tuple[Walk, Walk]) -> None:
    trees = Trees(0, 24, [25] * 8)
    drawn, drafted, bounds, parents, *rest = trees.arguments(trees.levels, torch.int64)
    expected = [trees.expected(request, trees.levels)[1] for request in range(8)]
    assert walks[0](drawn, drafted, bounds, (parents - 1).clamp(min=0), *rest)[1].tolist() != expected


@pytest.mark.parametrize("width", [1, 2, 5, 33])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_chains_are_walked_as_by_a_plain_loop(walks: tuple[Walk, Walk], width: int, dtype: torch.dtype) -> None:
    rng = random.Random(width)
    lengths = [width, 1, *(rng.randint(1, width) for _ in range(14))]
    drafted = [[rng.choice([-1, 0, 1, 1, 1, 1, 1, 1]) for _ in range(length)] for length in lengths]
    drawn = [[rng.choice([0, 1, 1, 1, 1, 1]) for _ in range(length)] for length in lengths]
    flat = [torch.tensor([token for row in rows for token in row]).to(dtype) for rows in (drawn, drafted)]
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    emitted, num_sampled = walks[1](*flat, bounds, width)
    assert (emitted.dtype, num_sampled.dtype) == (dtype, torch.int32)
    assert emitted.shape == (len(lengths), width)
    for request, count in enumerate(num_sampled.tolist()):
        expected = 1
        while expected < lengths[request] and drafted[request][expected] == drawn[request][expected - 1]:
            expected += 1
        assert count == expected
        assert emitted[request, :count].tolist() == drawn[request][:count]


def test_a_draft_marked_invalid_is_never_accepted(walks: tuple[Walk, Walk]) -> None:
    drawn, bounds = torch.tensor([7, 7, 7]), torch.tensor([0, 3])
    for invalid in (1, 2):
        drafted = torch.tensor([1, 7, 7])
        drafted[invalid] = -1
        assert walks[1](drawn, drafted, bounds, 3)[1].tolist() == [invalid]
        chain = torch.tensor([[0, 0, 1]]), 2
        assert walks[0](drawn, drafted, bounds, *chain)[1].tolist() == [invalid]


@pytest.mark.gpu
def test_a_captured_walk_follows_what_is_drawn() -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    trees = Trees(8, 60, [61] * 64)
    arguments = [a.cuda() if isinstance(a, Tensor) else a for a in trees.arguments(trees.levels, torch.int64)]
    tree_walk.accept_tree(*arguments)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tree_walk.accept_tree(*arguments)
    arguments[0].copy_(torch.randint(0, VOCABULARY, arguments[0].shape))
    graph.replay()
    for got, want in zip(captured, tree_walk.walk.accept_tree(*arguments), strict=True):
        assert torch.equal(got, want)
