"""Trees over independent distributions against all paths written out, with many ties and with -inf and NaN."""

import math
import random
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import Tensor

from tests.unit.tree_reference import Candidate, Tree, accepted, best, float32, tree_of
from vllm_specext.tree.expansion import best_tokens
from vllm_specext.tree.marginals import best_tree, most_nodes
from vllm_specext.tree.topology import Topology

TIES = (0.0, -0.5, -1.0)
SCORES = (TIES, (*TIES, -math.inf), (-math.inf,), tuple(-number / 7 for number in range(1, 1000)))

sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))
"""Levels, and tokens of each."""
seeds = st.lists(st.integers(0, 10_000), min_size=1, max_size=3)
"""One for each request."""


def drafted(seed: int, levels: int, k: int) -> list[list[tuple[int, float]]]:
    """Tokens and log-probabilities of each position, best first."""
    rng = random.Random(seed)
    scores = SCORES[seed % len(SCORES)]
    return [
        list(
            zip(rng.sample(range(2 * k), k), sorted(map(float32, rng.choices(scores, k=k)), reverse=True), strict=True)
        )
        for _ in range(levels)
    ]


def tensors(drafts: list[list[list[tuple[int, float]]]]) -> tuple[Tensor, Tensor]:
    both = torch.tensor(drafts, dtype=torch.float64)
    return both[..., 0].long(), both[..., 1].float()


def all_paths(draft: list[list[tuple[int, float]]]) -> list[Candidate]:
    """Every path there is: level by level, those of better parents first."""
    before, found = [Candidate((), 0.0)], []
    for position in draft:
        # Among equals the order is that of the parents, which are in the order of their scores.
        parents = best(before, len(before))
        before = [
            Candidate((*node.path, token), float32(node.score + score))
            for node, (token, score) in product(parents, position)
        ]
        found += best(before, len(before))
    return found


def shape(tokens: Tensor, topology: Topology, request: int) -> Tree:
    return Tree(topology.parents[request].tolist(), topology.depths[request].tolist(), [0, *tokens[request].tolist()])


@given(seeds, sizes, st.data())
def test_the_tree_has_the_best_of_all_paths(seeds: list[int], size: tuple[int, int], data: DataObject) -> None:
    nodes = data.draw(st.integers(1, most_nodes(*size)))
    drafts = [drafted(seed, *size) for seed in seeds]
    tokens, topology, promised = best_tree(*tensors(drafts), nodes)
    for request, draft in enumerate(drafts):
        kept = best(all_paths(draft), nodes)
        assert promised[request].item() == pytest.approx(accepted(kept), rel=1e-5)
        expected = tree_of([node.path for node in kept])
        assert shape(tokens, topology, request) == expected._replace(tokens=[0, *expected.tokens[1:]])


@given(seeds, sizes, st.data())
def test_every_prefix_is_the_best_tree_of_its_size(seeds: list[int], size: tuple[int, int], data: DataObject) -> None:
    nodes = data.draw(st.integers(1, most_nodes(*size)))
    given_tensors = tensors([drafted(seed, *size) for seed in seeds])
    tokens, whole, _ = best_tree(*given_tensors, most_nodes(*size))
    fewer_tokens, fewer, _ = best_tree(*given_tensors, nodes)
    assert torch.equal(fewer_tokens, tokens[:, :nodes])
    assert torch.equal(fewer.parents, whole.parents[:, : nodes + 1])
    assert torch.equal(fewer.depths, whole.depths[:, : nodes + 1])
    assert torch.equal(fewer.ancestors, whole.ancestors[:, : nodes + 1, : fewer.ancestors.shape[2]])


@given(sizes, st.integers(0, 100))
def test_a_drafter_that_yields_nan_drafts_trees(size: tuple[int, int], seed: int) -> None:
    levels, k = size
    rng = random.Random(seed)
    logits = torch.tensor([rng.choices([0.0, 1.0, -math.inf, math.inf, math.nan], k=6) for _ in range(levels)])
    tokens, topology, _ = best_tree(*best_tokens(logits[None], k), most_nodes(levels, k))
    parents, depths = topology.parents[0].tolist(), topology.depths[0].tolist()
    assert all(parents[node] < node and depths[node] == depths[parents[node]] + 1 for node in range(1, len(parents)))
    siblings = list(zip(parents[1:], tokens[0].tolist(), strict=True))
    assert len(set(siblings)) == len(siblings)


def test_a_level_that_keeps_too_few_misses_a_path() -> None:
    """That the levels are as wide as they have to be can be seen: the third of four nodes is on the first level."""
    draft = [[(0, -0.1), (1, -0.2), (2, -0.3)], [(3, -4.0), (4, -5.0), (5, -6.0)]]
    tokens, topology, _ = best_tree(*tensors([draft]), 4)
    assert tokens.tolist() == [[0, 1, 2, 3]]
    assert topology.parents.tolist() == [[0, 0, 0, 0, 1]]


@pytest.mark.parametrize(("levels", "k", "nodes"), [(1, 3, 3), (2, 3, 12), (4, 1, 4), (3, 2, 14)])
def test_most_nodes_are_those_of_the_full_tree(levels: int, k: int, nodes: int) -> None:
    assert most_nodes(levels, k) == nodes
    assert len(all_paths(drafted(0, levels, k))) == nodes
