"""Expansion against the slow reference, with many ties, and with drafters that yield -inf and NaN."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import Tensor

from tests.unit.tree_reference import Drafter, Path, accepted, best_tree, expand, tree_of
from vllm_specext.tree.expansion import Expansion, Frontier, best_tokens
from vllm_specext.tree.topology import unpack

TIES = (0.0, -0.5, -1.0)
SCORES = (TIES, (*TIES, -math.inf), (-math.inf,), tuple(-number / 7 for number in range(1, 1000)))

sizes = st.tuples(st.integers(1, 5), st.integers(1, 4))
"""Frontier nodes and levels."""


def drafter_of(seed: int, k: int) -> Drafter:
    scores = SCORES[seed % len(SCORES)]

    def drafter(path: Path) -> list[tuple[int, float]]:
        rng = random.Random(f"{seed} {path}")
        # As on the device: log-probabilities are float32.
        drawn = torch.tensor(sorted(rng.choices(scores, k=k), reverse=True), dtype=torch.float32)
        return list(zip(rng.sample(range(2 * k), k), drawn.tolist(), strict=True))

    return drafter


drafters = st.lists(st.integers(0, 10_000), min_size=1, max_size=3)
"""Seeds, one for each request."""


def tensors(proposals: list) -> tuple[Tensor, Tensor]:
    """Lists of (token, log-probability), nested as requests and nodes are -> tokens and log-probabilities."""
    both = torch.tensor(proposals, dtype=torch.float64)
    return both[..., 0].long(), both[..., 1].float()


def grow(seeds: list[int], k: int, levels: int) -> tuple[Expansion, list[Frontier], list[list[list[Path]]]]:
    """The expansion, its frontiers by level, and their nodes' paths by level and request."""
    drafts = [drafter_of(seed, k) for seed in seeds]
    expansion = Expansion(*tensors([draft(()) for draft in drafts]), levels)
    frontiers = [expansion.frontier]
    paths: list[list[list[Path]]] = [[[(token,) for token in row] for row in expansion.frontier.tokens.tolist()]]
    for _ in range(levels - 1):
        rows = zip(drafts, paths[-1], strict=True)
        expansion.grow(*tensors([[draft(path) for path in nodes] for draft, nodes in rows]))
        grown = expansion.frontier
        links = zip(paths[-1], grown.parents.tolist(), grown.tokens.tolist(), strict=True)
        paths.append([[(*old[p], t) for p, t in zip(parents, tokens, strict=True)] for old, parents, tokens in links])
        frontiers.append(grown)
    return expansion, frontiers, paths


def pool_size(k: int, levels: int) -> int:
    return k + (levels - 1) * k * k


@given(drafters, sizes, st.data())
def test_the_tree_is_that_of_the_slow_reference(seeds: list[int], size: tuple[int, int], data: DataObject) -> None:
    k, levels = size
    nodes = data.draw(st.integers(1, pool_size(k, levels)))
    tokens, topology, promised = grow(seeds, k, levels)[0].tree(nodes)
    for request, seed in enumerate(seeds):
        candidates, _ = expand(drafter_of(seed, k), k, levels)
        kept = best_tree(candidates, nodes)
        assert promised[request].item() == pytest.approx(accepted(kept), rel=1e-5)
        expected = tree_of([node.path for node in kept])
        assert tokens[request].tolist() == expected.tokens[1:]
        assert topology.parents[request].tolist() == expected.parents
        assert topology.depths[request].tolist() == expected.depths


@given(drafters, sizes)
def test_the_frontier_is_that_of_the_slow_reference(seeds: list[int], size: tuple[int, int]) -> None:
    k, levels = size
    _, frontiers, paths = grow(seeds, k, levels)
    for request, seed in enumerate(seeds):
        candidates, expected = expand(drafter_of(seed, k), k, levels)
        in_order = [candidate.path for level in candidates for candidate in level]
        for level, frontier in enumerate(frontiers):
            assert paths[level][request] == [node.path for node in expected[level]]
            assert frontier.scores[request].tolist() == [node.score for node in expected[level]]
            places = frontier.candidates[request].tolist()
            assert [in_order[place] for place in places] == paths[level][request]


@given(drafters, sizes)
def test_a_frontier_node_sees_itself_and_its_ancestors_only(seeds: list[int], size: tuple[int, int]) -> None:
    k, levels = size
    _, frontiers, paths = grow(seeds, k, levels)
    for level in range(levels - 1):  # the last level's frontier is not run
        seen = unpack(frontiers[level].visible, (levels - 1) * k)
        for request in range(len(seeds)):
            run = [path for earlier in paths[: level + 1] for path in earlier[request]]
            for rank, path in enumerate(paths[level][request]):
                expected = [path[: len(other)] == other for other in run]
                assert seen[request, rank].tolist() == expected + [False] * (seen.shape[2] - len(run))


@given(drafters, sizes, st.data())
def test_every_prefix_is_the_best_tree_of_its_size(seeds: list[int], size: tuple[int, int], data: DataObject) -> None:
    k, levels = size
    expansion = grow(seeds, k, levels)[0]
    nodes = data.draw(st.integers(1, pool_size(k, levels)))
    tokens, whole, _ = expansion.tree(pool_size(k, levels))
    fewer_tokens, fewer, _ = expansion.tree(nodes)
    assert torch.equal(fewer_tokens, tokens[:, :nodes])
    assert torch.equal(fewer.parents, whole.parents[:, : nodes + 1])
    assert torch.equal(fewer.depths, whole.depths[:, : nodes + 1])
    assert torch.equal(fewer.ancestors, whole.ancestors[:, : nodes + 1, : fewer.ancestors.shape[2]])
    # Connected and free of cycles: every node hangs on an earlier one, a level up.
    assert (whole.parents[:, 1:] < torch.arange(1, whole.parents.shape[1])).all()
    assert torch.equal(whole.depths[:, 1:], whole.depths.gather(1, whole.parents)[:, 1:] + 1)


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=4, unique=True), sizes, st.data())
def test_a_request_does_not_change_the_others(seeds: list[int], size: tuple[int, int], data: DataObject) -> None:
    k, levels = size
    nodes = data.draw(st.integers(1, pool_size(k, levels)))
    together = grow(seeds, k, levels)[0]
    tokens, topology, _ = together.tree(nodes)
    for request, seed in enumerate(seeds):
        alone = grow([seed], k, levels)[0]
        alone_tokens, alone_topology, _ = alone.tree(nodes)
        assert torch.equal(alone_tokens[0], tokens[request])
        assert torch.equal(alone_topology.ancestors[0], topology.ancestors[request])
        assert torch.equal(alone.chain()[0], together.chain()[request])


@given(drafters, sizes)
def test_the_chain_promises_most_tokens_of_all_full_paths(seeds: list[int], size: tuple[int, int]) -> None:
    k, levels = size
    chains = grow(seeds, k, levels)[0].chain()
    assert chains.shape == (len(seeds), levels)
    for seed, chain in zip(seeds, chains.tolist(), strict=True):
        candidates, _ = expand(drafter_of(seed, k), k, levels)
        probability = {node.path: math.exp(node.score) for level in candidates for node in level}
        promise = {
            node.path: sum(probability[node.path[:depth]] for depth in range(1, levels + 1)) for node in candidates[-1]
        }
        assert promise[tuple(chain)] == pytest.approx(max(promise.values()), rel=1e-6)


numbers = st.sampled_from([0.0, 1.0, 2.0, -math.inf, math.inf, math.nan])


@given(st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=1, max_size=8), st.integers(1, 5))
def test_trees_of_a_drafter_that_yields_nan_are_trees(rows: list[list[float]], k: int) -> None:
    logits = torch.tensor(rows)
    expansion = Expansion(*best_tokens(logits[:1], k), levels=3)
    for level in range(2):
        picked = (torch.arange(k) + level) % len(rows)
        expansion.grow(*best_tokens(logits[picked][None], k))
    tokens, topology, _ = expansion.tree(pool_size(k, 3))
    parents, depths = topology.parents[0].tolist(), topology.depths[0].tolist()
    assert all(parents[node] < node and depths[node] == depths[parents[node]] + 1 for node in range(1, len(parents)))
    siblings = list(zip(parents[1:], tokens[0].tolist(), strict=True))
    assert len(set(siblings)) == len(siblings)
    assert set(tokens[0].tolist()) <= set(range(5))
    assert not expansion.scores.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_best_tokens_come_with_their_log_probabilities_in_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    tokens, log_probs = best_tokens(logits, 4)
    expected = logits.float().log_softmax(dim=-1)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, expected.gather(-1, tokens))
    torch.testing.assert_close(log_probs, expected.sort(dim=-1, descending=True).values[..., :4])


def test_sharper_rows_have_the_same_tokens_and_the_probabilities_of_a_lower_temperature() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    sharpness = torch.tensor([0.5, 1.0, 4.0])
    tokens, log_probs = best_tokens(logits, 4, sharpness)
    plain_tokens, plain = best_tokens(logits, 4)
    assert torch.equal(tokens, plain_tokens)
    expected = (logits / (1 / sharpness)[:, None]).log_softmax(dim=-1)
    torch.testing.assert_close(log_probs, expected.gather(-1, tokens))
    assert log_probs[0, 0] < plain[0, 0]
    torch.testing.assert_close(log_probs[1], plain[1])
    assert log_probs[2, 0] > plain[2, 0]
