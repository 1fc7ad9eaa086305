"""How much may be drafted, and how deep a tree may be."""

import pytest

from vllm_specext.engine.drafting.tree_sizes import TreeSizes
from vllm_specext.options.stock import DFlashTreeOptions, Eagle3TreeOptions
from vllm_specext.options.swift import SwiftOptions
from vllm_specext.options.trees import GriffinOptions
from vllm_specext.tree.budget import TreeShape, pool_size, shape_for, sizes_up_to
from vllm_specext.tree.draft_size import NOTHING, DraftSize, depths_of, draft_sizes, ending_at

PUBLISHED = TreeShape(59, 6, 10)


def test_large_trees_have_several_depths_and_small_ones_their_own() -> None:
    assert depths_of(PUBLISHED) == [3, 4, 6]
    assert depths_of(shape_for(15, PUBLISHED)) == [3, 4, 6]
    assert depths_of(shape_for(7, PUBLISHED)) == [6]
    assert depths_of(shape_for(4, PUBLISHED)) == [4]
    assert depths_of(TreeShape(59, 12, 10)) == [3, 4, 6, 9, 12]
    assert depths_of(TreeShape(59, 3, 10)) == [3]


def test_a_method_has_its_own_depths_for_all_trees_that_fill_them() -> None:
    full = TreeShape(59, 12, 10, ends=(10, 11))
    assert depths_of(full) == [10, 11, 12]
    assert depths_of(shape_for(15, full)) == [10, 11, 12]
    assert depths_of(shape_for(12, full)) == [12]
    assert ending_at(full, 11) == TreeShape(59, 11, 10, ends=(10, 11))
    assert depths_of(TreeShape(59, 3, 10, ends=(1, 2))) == [2, 3]


@pytest.mark.parametrize(
    "shape", [TreeShape(nodes, depth, 1 + nodes // 8) for nodes in (9, 24, 59) for depth in (4, 8)]
)
def test_every_depth_has_candidates_for_all_nodes(shape: TreeShape) -> None:
    for depth in depths_of(shape):
        assert pool_size(depth, shape.top_k) >= shape.nodes or depth == shape.depth


def test_a_narrow_tree_is_not_cut_where_too_few_nodes_would_be_left() -> None:
    """Three levels of 2 children have 10 candidates."""
    assert depths_of(TreeShape(13, 6, 2)) == [4, 6]


def test_the_sizes_to_choose_among() -> None:
    numbers = sizes_up_to(59)
    chains = [DraftSize(nodes, nodes) for nodes in (0, 1, 2, 3, 4, 5)]
    assert chains[0] == NOTHING
    assert draft_sizes(numbers, PUBLISHED, any_depth=False) == [*chains, *(DraftSize(n, 6) for n in (7, 15, 31, 59))]
    trees = [DraftSize(nodes, depth) for nodes in (15, 31, 59) for depth in (3, 4, 6)]
    assert draft_sizes(numbers, PUBLISHED, any_depth=True) == [*chains, DraftSize(7, 6), *trees]
    assert draft_sizes([0, 2, 8], None, any_depth=True) == [DraftSize(each, each) for each in (0, 2, 8)]


def test_a_tree_ends_where_it_may_and_otherwise_at_its_own_depth() -> None:
    assert ending_at(PUBLISHED, 4) == TreeShape(59, 4, 10)
    for depth in (None, 5, 6, 9):
        assert ending_at(PUBLISHED, depth) == PUBLISHED


def test_a_worker_takes_what_the_scheduler_may_choose() -> None:
    """Both ask the same functions, of the same largest tree."""
    sizes = TreeSizes(PUBLISHED, [59] * 9, 8192, any_depth=True)
    for size in draft_sizes(sizes_up_to(59), PUBLISHED, any_depth=True):
        shape = sizes.shape_for(size.nodes, 1)
        assert size.levels in sizes.depths(shape)
    assert TreeSizes(PUBLISHED, [59] * 9, 8192).depths(PUBLISHED) == [6]


def test_the_depth_is_chosen_where_a_level_takes_a_pass() -> None:
    assert GriffinOptions(model="x").chooses_depth
    assert Eagle3TreeOptions(model="x").chooses_depth
    assert not GriffinOptions(model="x", tree_top_k=1).chooses_depth
    assert not DFlashTreeOptions(model="x").chooses_depth
    assert not SwiftOptions(method="swift").chooses_depth
