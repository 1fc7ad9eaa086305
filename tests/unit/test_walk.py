"""The walks against plain Python loops."""

from itertools import chain

import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import Tensor

from tests.unit.tree_reference import Tree, batches, walk
from vllm_specext.tree.topology import Topology
from vllm_specext.tree.walk import accept_chain, accept_tree

WIDTH = 5

chains = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2)), min_size=1, max_size=WIDTH), min_size=1, max_size=6
)
"""Per request: (drawn, drafted) of each row, over three tokens so that drafts are often right."""


def walk_slowly(rows: list[tuple[int, int]]) -> list[int]:
    emitted = [rows[0][0]]
    for drawn, drafted in rows[1:]:
        if drafted != emitted[-1]:
            break
        emitted.append(drawn)
    return emitted


@given(chains)
def test_the_chain_walk_emits_what_a_plain_loop_emits(requests: list[list[tuple[int, int]]]) -> None:
    rows = [row for request in requests for row in request]
    bounds = torch.tensor([0, *torch.tensor([len(r) for r in requests]).cumsum(0).tolist()])
    drawn, drafted = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
    emitted, num_sampled = accept_chain(drawn, drafted, bounds, WIDTH)
    assert emitted.shape == (len(requests), WIDTH)
    for request, tokens, count in zip(requests, emitted.tolist(), num_sampled.tolist(), strict=True):
        assert tokens[:count] == walk_slowly(request)


def test_a_draft_marked_invalid_is_never_accepted() -> None:
    drawn = torch.tensor([7, 7, 7])
    _, accepted = accept_chain(drawn, torch.tensor([1, 7, 7]), torch.tensor([0, 3]), 3)
    _, rejected = accept_chain(drawn, torch.tensor([1, -1, 7]), torch.tensor([0, 3]), 3)
    assert (accepted.item(), rejected.item()) == (3, 1)


VOCABULARY = 3


def bounds_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def flat(rows: list[list[int]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)))


def stacked(trees: list[Tree]) -> Tensor:
    return torch.tensor([tree.parents for tree in trees])


def some_invalid(tree: Tree, data: DataObject) -> Tree:
    """The tree with some of its tokens replaced by -1."""
    keep = data.draw(st.lists(st.integers(0, 5).map(bool), min_size=len(tree.tokens), max_size=len(tree.tokens)))
    return tree._replace(tokens=[token if kept else -1 for token, kept in zip(tree.tokens, keep, strict=True)])


@given(batches(st.integers(0, 10), requests=5, vocabulary=VOCABULARY), st.data())
def test_the_tree_walk_emits_what_a_plain_loop_emits(trees: list[Tree], data: DataObject) -> None:
    """Whole and truncated trees, and requests with one row, in one batch."""
    trees = [some_invalid(tree, data) for tree in trees]
    lengths = [data.draw(st.integers(1, len(tree.tokens))) for tree in trees]
    token = st.integers(0, VOCABULARY - 1)
    drawn = [data.draw(st.lists(token, min_size=length, max_size=length)) for length in lengths]
    levels = data.draw(st.integers(0, 1 + max(max(tree.depths) for tree in trees)))
    drafted = [tree.tokens[:length] for tree, length in zip(trees, lengths, strict=True)]
    emitted, num_sampled, path = accept_tree(flat(drawn), flat(drafted), bounds_of(lengths), stacked(trees), levels)
    assert emitted.shape == path.shape == (len(trees), levels + 1)
    assert num_sampled.dtype == torch.int32
    for request, tree in enumerate(trees):
        tokens, nodes = walk(tree, drawn[request], levels)
        count = int(num_sampled[request])
        assert emitted[request, :count].tolist() == tokens
        assert path[request].tolist() == nodes + [0] * (levels + 1 - count)


@given(chains)
def test_on_chains_the_tree_walk_is_the_chain_walk(requests: list[list[tuple[int, int]]]) -> None:
    rows = [row for request in requests for row in request]
    bounds = bounds_of([len(request) for request in requests])
    drawn, drafted = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
    emitted, num_sampled = accept_chain(drawn, drafted, bounds, WIDTH)
    topology = Topology.chain(len(requests), WIDTH - 1, "cpu")
    tokens, count, path = accept_tree(drawn, drafted, bounds, topology.parents, WIDTH - 1)
    assert torch.equal(count, num_sampled)
    counted = torch.arange(WIDTH) < num_sampled[:, None]
    assert torch.equal(tokens[counted], emitted[counted])
    assert torch.equal(path, torch.where(counted, torch.arange(WIDTH), 0))


def test_the_tree_walk_takes_the_branch_that_was_drawn() -> None:
    """Root with children 5 and 6, 6 with child 7; the same draws with each part of the tree cut away."""
    parents = torch.tensor([[0, 0, 0, 2]] * 4)
    drafted, drawn = [9, 5, 6, 7], [6, 1, 7, 8]
    lengths = [4, 3, 2, 1]
    emitted, num_sampled, path = accept_tree(
        flat([drawn[:length] for length in lengths]),
        flat([drafted[:length] for length in lengths]),
        bounds_of(lengths),
        parents,
        levels=2,
    )
    assert num_sampled.tolist() == [3, 2, 1, 1]
    assert emitted[0].tolist() == [6, 7, 8]
    assert path.tolist() == [[0, 2, 3], [0, 2, 0], [0, 0, 0], [0, 0, 0]]
