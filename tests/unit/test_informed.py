"""Trees of what follows the nodes of another tree against all of it written out, with many ties, -inf and NaN."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import Tensor

from tests.unit.tree_reference import Candidate, Path, Tree, accepted, best, float32, tree_of
from vllm_specext.tree.expansion import best_tokens
from vllm_specext.tree.informed import LEAST, NOT_AMONG_THE_BEST, informed_tree
from vllm_specext.tree.topology import Topology

SCORES = ((0.0, -0.5, -1.0), (0.0, -1.0, -math.inf), (-math.inf,), tuple(-number / 7 for number in range(1, 1000)))
TOKENS = 8

Follows = list[list[tuple[int, float]]]
"""Of the root and each node, the most likely tokens with their log-probabilities, best first."""

seeds = st.lists(st.integers(0, 10_000), min_size=1, max_size=3)
"""One for each request."""


def random_paths(rng: random.Random, nodes: int) -> list[Path]:
    """Those of a tree, parents first."""
    paths: list[Path] = [()]
    while len(paths) <= nodes:
        path = (*rng.choice(paths), rng.randrange(TOKENS))
        if path not in paths:
            paths.append(path)
    return paths[1:]


def random_follows(rng: random.Random, nodes: int, k: int) -> Follows:
    scores = rng.choice(SCORES)
    return [
        list(
            zip(
                rng.sample(range(TOKENS), k),
                sorted(map(float32, rng.choices(scores, k=k)), reverse=True),
                strict=True,
            )
        )
        for _ in range(nodes + 1)
    ]


def written_out(paths: list[Path], follows: Follows) -> list[Candidate]:
    """All that follows the root and the nodes, of the earlier ones first, and nodes that follow nothing before it."""
    scores, found = {(): 0.0}, []
    for path, after in zip([(), *paths], follows, strict=True):
        if path not in scores:
            scores[path] = float32(scores[path[:-1]] + NOT_AMONG_THE_BEST)
            found.append(Candidate(path, scores[path]))
        for token, log_prob in after:
            child = Candidate((*path, token), float32(scores[path] + max(log_prob, LEAST)))
            found.append(child)
            scores.setdefault(child.path, child.score)
    return found


def as_tensors(drafts: list[tuple[list[Path], Follows]]) -> tuple[Tensor, Topology, Tensor, Tensor]:
    trees = [tree_of(paths) for paths, _ in drafts]
    parents, depths = (torch.tensor([tree[part] for tree in trees]) for part in range(2))
    both = torch.tensor([follows for _, follows in drafts], dtype=torch.float64)
    shape = Topology.of(parents, depths, int(depths.max()))
    return torch.tensor([tree.tokens[1:] for tree in trees]), shape, both[..., 0].long(), both[..., 1].float()


def made(tokens: Tensor, topology: Topology, request: int) -> Tree:
    return Tree(topology.parents[request].tolist(), topology.depths[request].tolist(), [0, *tokens[request].tolist()])


@given(seeds, st.integers(1, 12), st.integers(1, 4), st.data())
def test_the_tree_has_the_best_of_all_that_follows(seeds: list[int], read: int, k: int, data: DataObject) -> None:
    nodes = data.draw(st.integers(1, (read + 1) * k))
    drafts = []
    for seed in seeds:
        rng = random.Random(seed)
        drafts.append((random_paths(rng, read), random_follows(rng, read, k)))
    tensors = as_tensors(drafts)
    levels = int(tensors[1].depths.max()) + 1
    tokens, topology, promised = informed_tree(*tensors, nodes, levels)
    for request, draft in enumerate(drafts):
        kept = best(written_out(*draft), nodes)
        assert promised[request].item() == pytest.approx(accepted(kept), rel=1e-5)
        expected = tree_of([node.path for node in kept])
        assert made(tokens, topology, request) == expected._replace(tokens=[0, *expected.tokens[1:]])
    whole = Topology.of(topology.parents, topology.depths, levels)
    assert torch.equal(topology.ancestors, whole.ancestors)


@given(st.integers(0, 100), st.integers(1, 12), st.integers(1, 4))
def test_a_drafter_that_yields_nan_drafts_trees(seed: int, read: int, k: int) -> None:
    rng = random.Random(seed)
    values = [0.0, 1.0, -math.inf, math.inf, math.nan]
    logits = torch.tensor([rng.choices(values, k=TOKENS) for _ in range(read + 1)])
    drafted, shape, _, _ = as_tensors([(random_paths(rng, read), random_follows(rng, read, k))])
    levels, nodes = int(shape.depths.max()) + 1, (read + 1) * k
    tokens, topology, _ = informed_tree(drafted, shape, *(x[None] for x in best_tokens(logits, k)), nodes, levels)
    parents, depths = topology.parents[0].tolist(), topology.depths[0].tolist()
    assert all(parents[node] < node and depths[node] == depths[parents[node]] + 1 for node in range(1, len(parents)))
    siblings = list(zip(parents[1:], tokens[0].tolist(), strict=True))
    assert len(set(siblings)) == len(siblings)


def test_what_follows_a_wrong_node_gives_way_to_what_is_likely() -> None:
    """Node 2 was read and is not likely: what follows node 1 takes its place."""
    follows = [[(1, -0.1), (3, -3.0)], [(5, -0.2), (6, -2.0)], [(7, -0.1), (1, -0.2)]]
    tokens, topology, promised = informed_tree(*as_tensors([([(1,), (2,)], follows)]), 4, 2)
    assert tokens.tolist() == [[1, 5, 6, 3]]
    assert topology.parents.tolist() == [[0, 0, 1, 1, 0]]
    assert promised.item() == pytest.approx(sum(math.exp(-x) for x in (0.1, 0.3, 2.1, 3.0)))
