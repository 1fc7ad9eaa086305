"""The Triton kernel of tree attention through every test of tree attention, with the batch in several runs."""

from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from test_tree_attention import *  # noqa: F403
from test_tree_attention import MIXED, Case, close, make

from vllm_specext.kernels.tree_attention import kernel


def attend(*tensors: Any, runs: int, **arguments: Any) -> None:
    query, key_cache, _, rows, _ = tensors
    defaults: dict[str, Any] = {"soft_cap": 0.0, "sliding_window": 0}
    tile = kernel.tile_for(query, key_cache, rows)
    kernel.tree_attention(*tensors, **(defaults | arguments), tile=tile, runs=runs)


@pytest.fixture(autouse=True, params=[5])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the module's own: the kernel with so many runs to share out, however short."""
    monkeypatch.setattr(kernel, "MIN_RUN", 1)
    monkeypatch.setattr(kernel, "MAX_SPLITS", 16)
    monkeypatch.setattr(Case, "implementation", staticmethod(partial(attend, runs=request.param)))


@pytest.mark.parametrize("implementation", [1, 2, 5, 33], indirect=True)
@pytest.mark.parametrize("changes", [{}, {"soft_cap": 1.5, "sliding_window": 15}])
def test_any_number_of_runs_gives_the_same(changes: dict[str, Any]) -> None:
    """Also more than there are tiles, so that some have nothing to do."""
    close(make(**MIXED), **changes)


@pytest.mark.parametrize("implementation", [1, 7], indirect=True)
@pytest.mark.parametrize("window", [0, 40, 70, 150, 400])
def test_tiles_inside_a_window_at_its_edge_and_after_it_are_all_attended_to(window: int) -> None:
    """Tiles of 64 slots, of which most are seen by all rows."""
    close(make([9, 1, 5, 20], [331, 64, 0, 500], head_size=32), sliding_window=window)


@pytest.mark.parametrize("implementation", [1, 6], indirect=True)
def test_rows_of_several_tiles_attend_as_those_of_one() -> None:
    """More rows times heads than one program takes."""
    close(make([70, 3, 40], [37, 20, 0], heads=8))


@pytest.mark.parametrize("implementation", [2, 9], indirect=True)
def test_requests_that_pad_a_batch_have_no_rows_and_wild_lengths() -> None:
    case = make([9, 0, 5, 0], [40, 3, 33, 7])
    case.rows.prefix_lens[1] = 1 << 20
    close(case)


@triton.jit
def _shares_kernel(start_ptr, prefix_ptr, out_ptr, requests, nodes, runs, WINDOW: tl.constexpr, MIN_RUN: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    counts = kernel._shares(start_ptr, prefix_ptr, requests, nodes, runs, WINDOW, MIN_RUN, 64, 64)
    tl.store(out_ptr + tl.arange(0, 64), counts)


@pytest.mark.parametrize(
    ("prefixes", "window", "shares"),
    [
        ([8000], 0, [8]),
        ([8000, 8000, 8000], 0, [2, 2, 2]),  # of 8 programs at once, 9 runs would take two rounds
        ([8000, 7500, 8500, 8100], 0, [2, 2, 2, 2]),
        ([20000, 7000, 1000], 0, [5, 2, 1]),
        ([1000] * 30, 0, [1] * 30),
        ([100000, *[1000] * 30], 0, [7, *[1] * 30]),
        ([100000, *[1000] * 30], 500, [1] * 31),
        ([100000, None, 1000, 0, None], 0, [6, 0, 1, 1, 0]),
        ([1100, 100], 0, [5, 1]),  # short runs do not pay
    ],
)
def test_long_requests_get_more_runs_and_those_without_rows_none(
    prefixes: list[int | None], window: int, shares: list[int]
) -> None:
    nodes = 60
    starts = torch.tensor([0, *(0 if prefix is None else nodes for prefix in prefixes)], dtype=torch.int32)
    lens = torch.tensor([1 << 20 if prefix is None else prefix for prefix in prefixes], dtype=torch.int32)
    found = torch.full((64,), -1, dtype=torch.int32)
    _shares_kernel[(1,)](starts.cumsum(0, dtype=torch.int32), lens, found, len(lens), nodes, 8, window, 256)
    assert found.tolist() == shares + [0] * (64 - len(shares))
    assert sum(shares) < len(shares) + 8
