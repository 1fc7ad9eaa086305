"""Packed bits, and who sees whom in a tree."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from tests.unit.tree_reference import Tree, ancestors, batches
from vllm_specext.tree.topology import Topology, pack, unpack, words

flags = st.integers(1, 100).flatmap(
    lambda count: st.lists(st.lists(st.booleans(), min_size=count, max_size=count), min_size=1, max_size=4)
)


def topology_of(trees: list[Tree]) -> Topology:
    parents, depths = torch.tensor([t.parents for t in trees]), torch.tensor([t.depths for t in trees])
    return Topology.of(parents, depths, int(depths.max()))


@given(flags)
def test_unpacking_gives_back_what_was_packed(rows: list[list[bool]]) -> None:
    count = len(rows[0])
    packed = pack(torch.tensor(rows))
    assert packed.dtype == torch.int32
    assert packed.shape == (len(rows), words(count))
    assert unpack(packed, count).tolist() == rows


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4))
def test_packing_gives_back_what_was_unpacked(packed: list[int]) -> None:
    assert pack(unpack(torch.tensor(packed, dtype=torch.int32), 32 * len(packed))).tolist() == packed


@given(st.integers(1, 130), st.data())
def test_a_flag_is_the_documented_bit_of_the_documented_word(count: int, data: DataObject) -> None:
    place = data.draw(st.integers(0, count - 1))
    words_of_one_flag = pack(torch.arange(count) == place).tolist()
    assert [word % 2**32 for word in words_of_one_flag] == [
        1 << (place % 32) if word == place // 32 else 0 for word in range(words(count))
    ]


def test_the_sign_bit_is_a_flag_like_the_others() -> None:
    assert pack(torch.arange(33) == 31).tolist() == [-(2**31), 0]
    assert pack(torch.ones(33, dtype=torch.bool)).tolist() == [-1, 1]
    assert unpack(torch.tensor([-1, 0], dtype=torch.int32), 33).tolist() == [True] * 32 + [False]


@given(batches(st.integers(0, 40), requests=3))
def test_a_node_sees_itself_and_the_nodes_on_the_way_to_the_root(trees: list[Tree]) -> None:
    topology = topology_of(trees)
    count = len(trees[0].parents)
    assert topology.ancestors.dtype == torch.int32
    for tree, seen in zip(trees, unpack(topology.ancestors, count), strict=True):
        for node in range(count):
            assert set(seen[node].nonzero().flatten().tolist()) == ancestors(tree.parents, node)
            assert seen[node].sum() == 1 + tree.depths[node]
            assert seen[node, 0]
    assert topology.parents.tolist() == [tree.parents for tree in trees]
    assert topology.depths.tolist() == [tree.depths for tree in trees]


@given(batches(st.integers(1, 40), requests=2), st.data())
def test_a_prefix_of_the_nodes_keeps_its_bits(trees: list[Tree], data: DataObject) -> None:
    kept = data.draw(st.integers(1, len(trees[0].parents)))
    whole = topology_of(trees)
    prefix = Topology.of(whole.parents[:, :kept], whole.depths[:, :kept], int(whole.depths.max()))
    assert torch.equal(prefix.ancestors, whole.ancestors[:, :kept, : words(kept)])
    assert not whole.ancestors[:, :kept, words(kept) :].any()


@given(st.integers(1, 4), st.integers(0, 70))
def test_a_chain_is_the_tree_of_one_path(requests: int, nodes: int) -> None:
    chain = Topology.chain(requests, nodes, "cpu")
    one = Tree([max(node - 1, 0) for node in range(nodes + 1)], list(range(nodes + 1)), [0] * (nodes + 1))
    tree = topology_of([one] * requests)
    assert torch.equal(chain.parents, tree.parents)
    assert torch.equal(chain.depths, tree.depths)
    assert torch.equal(chain.ancestors, tree.ancestors)


def test_trees_deeper_than_said_lose_their_roots() -> None:
    """The bound on the levels is a promise of the caller's, and these tests would notice a loop too short."""
    chain = Topology.chain(1, 3, "cpu")
    assert not torch.equal(Topology.of(chain.parents, chain.depths, levels=2).ancestors, chain.ancestors)
