"""The Triton kernel of tree attention through every test of tree attention, with the batch in several runs."""

import random
from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from bodies import fill_new_memory
from gpus import H100
from test_attention_sinks import *  # noqa: F403
from test_latent_attention import *  # noqa: F403
from test_latent_attention import make_latent
from test_tree_attention import *  # noqa: F403
from test_tree_attention import MIXED, Case, close, make

from vllm_specext.kernels.tree_attention import kernel, launching
from vllm_specext.kernels.tree_attention.tiles import Launch, launch_for

NODES = 60


def attend(*tensors: Any, runs: int, **arguments: Any) -> None:
    query, key_cache, value_cache, rows, _ = tensors
    defaults: dict[str, Any] = {"soft_cap": 0.0, "sliding_window": 0}
    tile = launch_for(query, key_cache, value_cache, rows, H100).tile
    launching.tree_attention(*tensors, **(defaults | arguments), launch=Launch(tile, runs, at_once=8))


@pytest.fixture(autouse=True, params=[5])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the module's own: the kernel with so many runs to share out, however short."""
    fill_new_memory(monkeypatch)
    monkeypatch.setattr(launching, "MIN_RUN", 1)
    monkeypatch.setattr(launching, "MAX_SPLITS", 16)
    monkeypatch.setattr(Case, "implementation", staticmethod(partial(attend, runs=request.param)))


@pytest.mark.parametrize("implementation", [1, 2, 5, 33], indirect=True)
@pytest.mark.parametrize(
    "changes", [{}, {"soft_cap": 1.5, "sliding_window": 15}, {"sinks": torch.linspace(-2, 4, 4), "sliding_window": 40}]
)
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


@pytest.mark.parametrize("implementation", [1, 2, 6], indirect=True)
def test_rows_of_several_tiles_over_a_latent_cache_do() -> None:
    close(make_latent([70, 3, 40], [37, 20, 0], heads=8))


@pytest.mark.parametrize("implementation", [2, 9], indirect=True)
def test_requests_that_pad_a_batch_have_no_rows_and_wild_lengths() -> None:
    case = make([9, 0, 5, 0], [40, 3, 33, 7])
    case.rows.prefix_lens[1] = 1 << 20
    close(case)


@triton.jit
def _shares_kernel(start_ptr, prefix_ptr, out_ptr, requests, nodes, runs, WINDOW: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    counts = kernel._shares(start_ptr, prefix_ptr, requests, nodes, runs, 132, 16, WINDOW, 256, 64, 32, 32)
    tl.store(out_ptr + tl.arange(0, 32), counts)


def shares_of(prefixes: list[int | None], window: int = 0, runs: int = 24) -> list[int]:
    """Into how many runs requests are cut, whose prefixes are given, on 132 processors with 16 programs in a run."""
    starts = torch.tensor([0, *(0 if prefix is None else NODES for prefix in prefixes)], dtype=torch.int32)
    lens = torch.tensor([1 << 20 if prefix is None else prefix for prefix in prefixes], dtype=torch.int32)
    found = torch.full((32,), -1, dtype=torch.int32)
    _shares_kernel[(1,)](starts.cumsum(0, dtype=torch.int32), lens, found, len(lens), NODES, runs, window)
    assert not found[len(prefixes) :].any()
    return found[: len(prefixes)].tolist()


@pytest.mark.parametrize(
    ("prefixes", "window", "shares"),
    [
        ([8000], 0, [8]),  # 8 runs are 128 programs, 9 would take two rounds
        ([1000, 1000], 0, [4, 4]),
        ([20000, 7000, 1000], 0, [11, 4, 1]),  # two rounds of 16 runs; one round would be of 4012 slots a run
        ([1000] * 30, 0, [1] * 30),
        ([100000, *[1000] * 23], 500, [1] * 24),
        ([None, 8000, 0, None], 0, [0, 7, 1, 0]),
        ([1100, 100], 0, [5, 1]),  # shorter runs do not pay
        ([100, None], 0, [1, 0]),
        ([None, None], 0, [0, 0]),
    ],
)
def test_long_requests_get_more_runs_and_those_without_rows_none(
    prefixes: list[int | None], window: int, shares: list[int]
) -> None:
    assert shares_of(prefixes, window) == shares


@pytest.mark.parametrize(
    ("requests", "busy"), [(1, 0.96), (3, 0.9), (5, 0.9), (6, 0.96), (9, 0.72), (10, 0.8), (12, 0.96), (16, 0.96)]
)
def test_requests_that_do_not_divide_the_gpu_are_cut_so_that_little_of_it_idles(requests: int, busy: float) -> None:
    """One run for each would leave 27 to 88 % idle, but for 16."""
    shares = shares_of([8000] * requests)
    programs = 16 * sum(shares)
    assert programs / (132 * -(-programs // 132)) > busy


def test_few_parts_are_tried_one_by_one_however_many_runs_there_may_be() -> None:
    """Two runs for each are 128 programs. An H200 took 1.2 times as long where three were the next that was tried."""
    assert shares_of([8000] * 4, runs=99) == [2] * 4


@pytest.mark.parametrize("runs", [2, 8, 24, 99])
def test_the_length_of_runs_is_among_the_best(runs: int) -> None:
    """Beside the best of all lengths, by the time that is expected of each."""
    chooser = random.Random(runs)
    for _ in range(30):
        lengths = [chooser.choice((300, 3000, 30000)) + chooser.randrange(300) for _ in range(chooser.randint(1, 20))]

        def taken(parts: list[int], longest: int, requests: int = len(lengths)) -> int:
            split = 256 if sum(parts) > requests else 0
            return -(-sum(parts) * 16 // 132) * (longest + split)

        def cut(longest: int, lengths: list[int] = lengths) -> list[int]:
            return [-(-length // longest) for length in lengths]

        allowed = [longest for longest in range(256, max(lengths) + 1) if sum(cut(longest)) <= runs]
        best = min(taken(cut(longest), longest) for longest in [*allowed, max(lengths)])
        shares = shares_of([length - NODES for length in lengths], runs=runs)
        assert sum(shares) <= max(runs, len(lengths))
        longest = max(-(-length // part) for length, part in zip(lengths, shares, strict=True))
        assert taken(shares, longest) <= 1.15 * best
