"""SWIFT's draft trees against a slow reference: ties, probabilities of 0, token 0, padding."""

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor

from vllm_specext.methods.swift.draft_tree import DraftTree, draft_tree, goes_on, right_tokens
from vllm_specext.tree.topology import Topology, unpack
from vllm_specext.tree.walk import accept_tree

EXTRA_DEPTH = 2
"""Levels that the walk may go beyond the last one drafted."""


class Node(NamedTuple):
    path: tuple[int, ...]
    score: float


def confidence_of(log_prob: float) -> float:
    """The probability in float32, as on the device."""
    return torch.tensor(log_prob, dtype=torch.float32).exp().item()


def slow_tree(
    tokens: list[list[int]], log_probs: list[list[float]], sampled: bool, confidence: float, nodes: int
) -> list[tuple[int, ...]]:
    """Paths of the nodes of one request, in order."""
    threshold = torch.tensor(confidence, dtype=torch.float32).item()
    found: list[Node] = []
    chain = Node((), 0.0)
    for level, scores in zip(tokens, log_probs, strict=True):
        sure = confidence_of(scores[0])
        bounds = [torch.tensor(bound, dtype=torch.float32).item() for bound in (0.95, 0.8, 0.5)]
        counts = (1, 3, 5, 10) if sampled else (3, 5, 8, 10)
        count = next((c for bound, c in zip(bounds, counts, strict=False) if sure > bound), counts[-1])
        nodes_here = [
            Node((*chain.path, token), chain.score + score) for token, score in zip(level, scores, strict=True)
        ]
        found += nodes_here[:count]
        chain = nodes_here[0]
        if sure < threshold:
            break
    order = sorted(range(len(found)), key=lambda place: (-found[place].score, place))
    return [found[place].path for place in order[:nodes]]


def check(tree: DraftTree, request: int, paths: list[tuple[int, ...]], depth: int) -> None:
    count = len(paths)
    assert tree.num_nodes[request] == count
    node_of = {(): 0} | {path: node for node, path in enumerate(paths, 1)}
    padding = tree.tokens.shape[1] - count
    assert tree.tokens[request].tolist() == [path[-1] for path in paths] + [0] * padding
    topology = tree.topology
    parents_of_padding = list(range(count + 1, count + 1 + padding))
    assert topology.parents[request].tolist() == [0, *(node_of[path[:-1]] for path in paths), *parents_of_padding]
    depths = topology.depths[request].tolist()
    assert depths == [0, *(len(path) for path in paths)] + [depth + EXTRA_DEPTH + 1] * padding


# Sums of these are exact, so they tie wherever they should.
TIES = (-0.03125, 0.0, -0.25, -0.5, -1.0, -4.0)
SCORES = st.one_of(
    st.sampled_from((*TIES, -math.inf)),
    st.sampled_from([round(math.log(bound), 6) for bound in (0.95, 0.8, 0.5)]),
    st.floats(-12, 0, width=32),
)


class Drafts(NamedTuple):
    tokens: list[list[list[int]]]
    log_probs: list[list[list[float]]]
    sampled: list[bool]


@st.composite
def drafts(draw: DrawFn) -> Drafts:
    requests, depth = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    width = draw(st.sampled_from([1, 4, 10]))
    scores = st.one_of(SCORES, st.just(-0.03125))
    level = st.lists(scores, min_size=width, max_size=width).map(lambda row: sorted(row, reverse=True))
    ids = st.permutations(range(width + 2)).map(lambda row: row[:width])
    return Drafts(
        [[draw(ids) for _ in range(depth)] for _ in range(requests)],
        [[draw(level) for _ in range(depth)] for _ in range(requests)],
        draw(st.lists(st.booleans(), min_size=requests, max_size=requests)),
    )


def tensors(found: Drafts) -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(found.tokens), torch.tensor(found.log_probs, dtype=torch.float32), torch.tensor(found.sampled)


def as_float32(found: Drafts) -> list[list[list[float]]]:
    return torch.tensor(found.log_probs, dtype=torch.float32).tolist()


def grow(found: Drafts, confidence: float, nodes: int) -> DraftTree:
    tokens, log_probs, sampled = tensors(found)
    max_depth = tokens.shape[1] + EXTRA_DEPTH
    return draft_tree(tokens, log_probs, sampled=sampled, confidence=confidence, nodes=nodes, max_depth=max_depth)


@settings(max_examples=40)
@given(drafts(), st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.integers(1, 60))
def test_the_tree_is_that_of_the_slow_reference(found: Drafts, confidence: float, nodes: int) -> None:
    tree = grow(found, confidence, nodes)
    rows = zip(found.tokens, as_float32(found), found.sampled, strict=True)
    for request, (tokens, log_probs, sampled) in enumerate(rows):
        paths = slow_tree(tokens, log_probs, sampled, confidence, nodes)
        check(tree, request, paths, len(tokens))


@settings(max_examples=40)
@given(drafts(), st.integers(1, 60))
def test_nodes_see_their_ancestors_and_padding_sees_the_root_only(found: Drafts, nodes: int) -> None:
    tree = grow(found, 0.8, nodes)
    depths = tree.topology.depths
    is_node = torch.arange(nodes + 1) <= tree.num_nodes[:, None]
    expected = Topology.of(tree.topology.parents.where(is_node, 0), depths, depths.shape[1])
    assert torch.equal(tree.topology.ancestors, expected.ancestors)


@settings(max_examples=40)
@given(drafts(), st.integers(1, 60))
def test_parents_come_first_and_siblings_hold_distinct_tokens(found: Drafts, nodes: int) -> None:
    tree = grow(found, 0.5, nodes)
    node = torch.arange(nodes + 1)
    own_nodes = (node > 0) & (node <= tree.num_nodes[:, None])
    assert (tree.topology.parents < node)[own_nodes].all()
    for request, count in enumerate(tree.num_nodes.tolist()):
        parents = tree.topology.parents[request, 1 : count + 1].tolist()
        children = list(zip(parents, tree.tokens[request, :count].tolist(), strict=True))
        assert len(set(children)) == len(children)


@settings(max_examples=40)
@given(drafts(), st.integers(1, 40), st.integers(0, 20))
def test_a_smaller_tree_is_the_beginning_of_a_larger_one(found: Drafts, nodes: int, more: int) -> None:
    small, large = grow(found, 0.8, nodes), grow(found, 0.8, nodes + more)
    assert torch.equal(small.tokens, large.tokens[:, :nodes])
    assert torch.equal(small.topology.parents, large.topology.parents[:, : nodes + 1])


@settings(max_examples=40)
@given(drafts(), st.integers(1, 40))
def test_what_stands_after_a_chains_end_does_not_matter(found: Drafts, nodes: int) -> None:
    tokens, log_probs, sampled = tensors(found)
    depth = tokens.shape[1]
    ended = ~goes_on(log_probs[..., 0], 0.8)
    after_end = (ended.int().cumsum(dim=1) - ended.int()) > 0
    other = log_probs.masked_fill(after_end[..., None], -0.01), tokens.masked_fill(after_end[..., None], 0)
    first = grow(found, 0.8, nodes)
    second = draft_tree(other[1], other[0], sampled=sampled, confidence=0.8, nodes=nodes, max_depth=depth + EXTRA_DEPTH)
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.topology.depths, second.topology.depths)


@settings(max_examples=40)
@given(drafts(), st.integers(1, 60))
def test_a_target_that_always_draws_token_0_is_never_led_into_the_padding(found: Drafts, nodes: int) -> None:
    tree = grow(found, 0.8, nodes)
    depth = len(found.tokens[0]) + EXTRA_DEPTH
    requests = len(found.tokens)
    rows = requests * (nodes + 1)
    drafted = torch.cat((torch.zeros(requests, 1, dtype=torch.long), tree.tokens), dim=1).flatten()
    starts = torch.arange(0, rows + 1, nodes + 1)
    topology = tree.topology
    _, _, path = accept_tree(torch.zeros(rows, dtype=torch.long), drafted, starts, topology.parents, depth)
    assert (path <= tree.num_nodes[:, None]).all()


def test_padding_that_is_a_child_of_the_root_would_be_walked_into() -> None:
    """The test above can fail: it is the parent that keeps the walk out, not the token."""
    tree = grow(Drafts([[[1, 2]]], [[[-0.25, -2.0]]], [False]), 0.8, 4)
    is_node = torch.arange(5) <= tree.num_nodes[:, None]
    parents = tree.topology.parents.where(is_node, 0)
    drafted = torch.cat((torch.zeros(1, 1, dtype=torch.long), tree.tokens), dim=1).flatten()
    drawn = torch.zeros(5, dtype=torch.long)
    _, _, path = accept_tree(drawn, drafted, torch.tensor([0, 5]), parents, 3)
    assert path.max() > tree.num_nodes[0]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_sibling_is_accepted_at_every_depth_with_token_0_too(depth: int) -> None:
    levels = [[5, 0, 7], [5, 0, 7], [5, 0, 7]]
    tree = grow(Drafts([levels], [[[-0.03, -4.0, -5.0]] * 3], [False]), 0.8, 9)
    # The target follows the chain down to the sibling's parent, then draws token 0, then something nobody drafted.
    chain = [0]
    parents, tokens = tree.topology.parents[0].tolist(), [-1, *tree.tokens[0].tolist()]
    while (child := next((n for n in range(1, 10) if parents[n] == chain[-1] and tokens[n] == 5), None)) is not None:
        chain.append(child)
    drawn = torch.full((10,), 9)
    drawn[chain[: depth - 1]] = 5
    drawn[chain[depth - 1]] = 0
    topology = tree.topology
    emitted, num_sampled, _ = accept_tree(drawn, torch.tensor(tokens), torch.tensor([0, 10]), topology.parents, 3)
    assert num_sampled.tolist() == [depth + 1]
    assert emitted[0, : depth + 1].tolist() == [5] * (depth - 1) + [0, 9]


@pytest.mark.parametrize(("probability", "greedy", "sampled"), [(0.99, 3, 1), (0.9, 5, 3), (0.7, 8, 5), (0.3, 10, 10)])
def test_the_less_sure_a_level_the_more_candidates(probability: float, greedy: int, sampled: int) -> None:
    level = [math.log(probability), *(-8.0 - rank for rank in range(9))]
    tree = grow(Drafts([[list(range(10))]] * 2, [[level]] * 2, [False, True]), 0.8, 10)
    assert tree.num_nodes.tolist() == [greedy, sampled]


def test_the_unsure_level_is_kept_and_ends_the_chain() -> None:
    sure, unsure = [math.log(0.9), -9.0], [math.log(0.6), -9.0]
    tree = grow(Drafts([[[1, 2]] * 4], [[sure, unsure, sure, sure]], [False]), 0.8, 8)
    assert unpack(tree.topology.ancestors, 9).shape == (1, 9, 9)
    depths = tree.topology.depths[0, 1 : int(tree.num_nodes[0]) + 1]
    assert sorted(depths.tolist()) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("log_prob", "on"), [(math.log(0.81), True), (0.0, True), (math.log(0.79), False), (-math.inf, False)]
)
def test_the_chain_goes_on_where_the_drafter_is_sure(log_prob: float, on: bool) -> None:
    assert goes_on(torch.tensor([log_prob]), 0.8).tolist() == [on]


def test_a_request_does_not_change_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.stack([torch.randperm(50, generator=generator)[:10] for _ in range(24)]).view(4, 6, 10)
    log_probs = (torch.rand(4, 6, 10, generator=generator) * -3).sort(descending=True).values
    log_probs[..., 0] *= 0.1
    sampled = torch.tensor([False, True, False, True])

    def tree(of: slice) -> DraftTree:
        return draft_tree(tokens[of], log_probs[of], sampled=sampled[of], confidence=0.8, nodes=32, max_depth=25)

    together = tree(slice(None))
    for request in range(4):
        alone = tree(slice(request, request + 1))
        assert torch.equal(alone.tokens[0], together.tokens[request])
        assert torch.equal(alone.topology.ancestors[0], together.topology.ancestors[request])


def test_a_chain_is_right_up_to_its_first_wrong_token_which_was_reached_too() -> None:
    chains = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]])
    text = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 2, 3], [1, 2, 3], [1, 2, 3]])
    depths = torch.tensor([3, 3, 3, 2, 0])[:, None]
    right, reached = right_tokens(chains, text, known=torch.arange(3) < depths)
    assert right.tolist() == [3, 1, 0, 2, 0]
    assert reached.tolist() == [3, 2, 1, 2, 0]
