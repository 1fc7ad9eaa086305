"""Trees of every size are sound, and grow no larger as more requests run."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_specext.options.base import MethodOptions
from vllm_specext.options.swift import SwiftOptions
from vllm_specext.options.trees import GriffinOptions, MoAOptions
from vllm_specext.tree.budget import (
    MANY,
    MOST_ROWS,
    UNMEASURED,
    TreeShape,
    describe,
    fixed_schedule,
    largest_schedule,
    lookahead,
    pool_size,
    shape_for,
    sizes_up_to,
)

FULL = TreeShape(59, 6, 10)


@st.composite
def full_trees(draw: st.DrawFn) -> TreeShape:
    levels, top_k = draw(st.integers(1, 32)), draw(st.integers(2, 64))
    return TreeShape(draw(st.integers(1, min(256, pool_size(levels, top_k)))), levels, top_k)


@given(full_trees(), st.data())
def test_every_smaller_tree_fits_its_pool_and_the_full_trees_slots(full: TreeShape, data: st.DataObject) -> None:
    nodes = data.draw(st.integers(0, full.nodes))
    shape = shape_for(nodes, full)
    assert shape.nodes == nodes
    assert shape.depth == min(full.depth, nodes)
    assert 1 <= shape.top_k <= full.top_k
    assert (shape.top_k == 1) == (nodes <= full.depth)
    if nodes:
        assert pool_size(shape.depth, shape.top_k) >= nodes
        assert lookahead(shape.depth, shape.top_k, 0) <= lookahead(full.depth, full.top_k, 0)


@given(full_trees(), st.data())
def test_more_nodes_never_make_a_tree_narrower_or_shallower(full: TreeShape, data: st.DataObject) -> None:
    fewer = data.draw(st.integers(0, full.nodes))
    more = data.draw(st.integers(fewer, full.nodes))
    small, large = shape_for(fewer, full), shape_for(more, full)
    assert small.depth <= large.depth
    assert small.top_k <= large.top_k


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        (59, FULL),
        (58, TreeShape(58, 6, 10)),
        (30, TreeShape(30, 6, 6)),
        (7, TreeShape(7, 6, 2)),
        (6, TreeShape(6, 6, 1)),
        (3, TreeShape(3, 3, 1)),
        (0, TreeShape(0, 0, 1)),
    ],
)
def test_the_width_follows_the_number_of_nodes(nodes: int, shape: TreeShape) -> None:
    assert shape_for(nodes, FULL) == shape


def test_a_width_whose_pool_is_too_small_is_raised() -> None:
    full = TreeShape(pool_size(2, 4), depth=2, top_k=4)
    assert pool_size(2, 2) < 10
    assert shape_for(10, full) == TreeShape(10, 2, 3)


def test_a_width_whose_pool_just_fits_is_kept() -> None:
    full = TreeShape(pool_size(2, 4), depth=2, top_k=4)
    assert shape_for(pool_size(2, 2), full) == TreeShape(6, 2, 2)


def test_the_published_tree_has_the_published_pool() -> None:
    assert pool_size(6, 10) == 510
    assert lookahead(6, 10, root_slots=0) == 50
    assert lookahead(6, 10, root_slots=1) == 51


@given(st.integers(1, 256), st.sampled_from([*UNMEASURED, "xpu", None]))
def test_a_schedule_covers_all_batch_sizes_and_only_falls(most: int, device_type: str | None) -> None:
    schedule = largest_schedule(most) if device_type is None else fixed_schedule(most, device_type)
    assert schedule[0][0] == 1
    assert all(first <= last for first, last, _ in schedule)
    assert all(before[1] + 1 == after[0] for before, after in pairwise(schedule))
    sizes = [nodes for _, _, nodes in schedule]
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[0] <= most
    assert sizes[-1] == 0
    assert all(last * (1 + nodes) <= MOST_ROWS for _, last, nodes in schedule if nodes)


@given(st.integers(1, 256))
def test_every_size_has_a_range_where_the_scheduler_chooses(most: int) -> None:
    sizes = sizes_up_to(most)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (0, most)
    assert [nodes for _, _, nodes in largest_schedule(most)][::-1] == sizes


def test_sizes_next_to_the_largest_are_left_out() -> None:
    assert sizes_up_to(59) == [0, 1, 2, 3, 4, 5, 7, 15, 31, 59]
    assert sizes_up_to(9) == [0, 1, 2, 3, 4, 5, 9]
    assert sizes_up_to(1) == [0, 1]


def test_vllm_accepts_the_schedules_and_reads_them_as_meant() -> None:
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    lookup = build_dynamic_sd_schedule_lookup(fixed_schedule(FULL.nodes, "cpu"), 26, FULL.nodes)
    assert lookup[1:] == [7] * 6 + [5] * 2 + [4] + [3] * 3 + [2] * 4 + [1] * 8 + [0] * 2


@pytest.mark.parametrize("method", [GriffinOptions, MoAOptions, SwiftOptions])
def test_a_gpu_with_one_request_may_draft_the_whole_default_tree(method: type[MethodOptions]) -> None:
    needed = {"model": "any"} if "model" in method.model_fields else {}
    options = method.model_validate(needed)
    assert options.tree is not None
    most = options.num_speculative_tokens
    assert most == fixed_schedule(most, "cuda")[0][2] == largest_schedule(most)[0][2]


def test_a_schedule_is_described_for_people() -> None:
    schedule = [[1, 1, 59], [2, 16, 4], [17, MANY, 0]]
    assert describe(schedule, depth=6) == "1: 59, 2-16: 4 (chain), from 17: none"
    assert describe([[1, 2, 7], [3, MANY, 6]], depth=6) == "1-2: 7, from 3: 6 (chain)"
