"""What the kernel of tree attention promises besides its results: shapes alone decide a launch, so it may be captured.

``test_compilation.py`` checks that it compiles; ``test_tree_attention.py`` on a GPU, and
``cases/case_tree_attention.py`` without one, that its results are right.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cache_layouts import halves
from gpus import A100, H100, RTX_4090
from test_tree_attention import SCALE, Case, make

pytest.importorskip("triton")

from vllm_specext.kernels.tree_attention import TreeRows, launching, tiles
from vllm_specext.kernels.tree_attention.tiles import KIB, Launch, Processors, Tile
from vllm_specext.tree.budget import SIZES


def rows_of(requests: int, query_len: int, max_seq_len: int) -> TreeRows:
    shapes: dict[str, Any] = {"block_table": torch.empty(requests, 1), "num_rows": requests * query_len}
    unused = dict.fromkeys(("query_start_loc", "prefix_lens", "visible"), torch.empty(0))
    return TreeRows(**shapes, **unused, max_query_len=query_len, num_nodes=query_len, max_seq_len=max_seq_len)


@pytest.mark.parametrize(
    ("requests", "max_seq_len", "runs"),
    [
        (1, 32768, 8),
        (2, 32768, 24),
        (4, 32768, 24),
        (1, 1024, 4),
        (1, 500, 1),
        (16, 32768, 24),
        (17, 32768, 8),
        (64, 131072, 8),
    ],
)
def test_runs_may_fill_the_gpu_a_few_times_where_requests_are_few(requests: int, max_seq_len: int, runs: int) -> None:
    """Llama-3-8B's 8 heads of keys and trees of 60 nodes, two row tiles each, on 132 multiprocessors."""
    query, keys = torch.empty(1, 32, 128, dtype=torch.bfloat16), torch.empty(1, 8, 16, 128)
    rows = rows_of(requests, 61, max_seq_len)
    assert tiles.launch_for(query, keys, keys, rows, H100) == Launch(
        Tile(128, 64, warps=8, stages=3), runs, at_once=132
    )


@pytest.mark.parametrize(
    ("packed", "head_size", "stages"),
    [
        (240, 128, {"A100": 3, "RTX 4090": 3, "H100": 3}),
        # Two programs of 88 KiB side by side are more than an A100's processor has. None has room for two on an RTX.
        (64, 128, {"A100": 2, "RTX 4090": 3, "H100": 3}),
        (28, 128, {"A100": 3, "RTX 4090": 2, "H100": 3}),
        (240, 256, {"A100": 3, "RTX 4090": 2, "H100": 3}),
    ],
)
def test_a_third_stage_displaces_no_other_program(packed: int, head_size: int, stages: dict[str, int]) -> None:
    gpus = {"A100": A100, "RTX 4090": RTX_4090, "H100": H100}
    assert {name: tiles.tile_for(packed, head_size, 2, gpu).stages for name, gpu in gpus.items()} == stages


@pytest.mark.parametrize("heads", [2, 4, 8])
@pytest.mark.parametrize("nodes", [size for size in SIZES if size >= 7])
def test_trees_that_are_chosen_among_fill_their_tiles(nodes: int, heads: int) -> None:
    """``heads`` share a head of the cache. A node more needs another tile, or one twice as high."""

    def filled(nodes: int) -> float:
        rows = (1 + nodes) * heads
        tile = tiles.tile_for(rows, 128, 2, H100)
        return rows / (tile.block_m * tiles.row_tiles(rows, tile))

    assert filled(nodes) == 1
    assert filled(nodes + 1) < 0.9


def test_torch_says_what_a_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = {"multi_processor_count": 132, "major": 9, "shared_memory_per_block": 48 * KIB}
    memory = {"shared_memory_per_multiprocessor": 228 * KIB, "shared_memory_per_block_optin": 227 * KIB}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**h100, **memory))
    assert Processors.of(torch.device("cuda", 99)) == H100


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    monkeypatch.setattr(Case, "device", "cuda")


def launch(case: Case, runs: int, out: torch.Tensor, tile: Tile | None = None) -> None:
    options: dict[str, Any] = {"scale": SCALE, "soft_cap": 0.0, "sliding_window": 0}
    chosen = tiles.launch_for(case.query, case.keys, case.values, case.rows, Processors.of(case.query.device))
    tensors = case.query, case.keys, case.values, case.rows, out
    launching.tree_attention(
        *tensors, **options, **case.scales, launch=Launch(tile or chosen.tile, runs, chosen.at_once)
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("tile", [None, Tile(64, 32, 4, 3), Tile(16, 128, 4, 2)])
@pytest.mark.parametrize("runs", [1, 2, 5, 64])
def test_long_contexts_in_runs_on_a_gpu(runs: int, tile: Tile | None) -> None:
    shape: dict[str, Any] = {"heads": 8, "head_size": 128, "dtype": torch.bfloat16, "layout": halves}
    case = make([61, 9, 33], [4000, 517, 0], **shape)
    out = torch.full_like(case.query, 7.0)
    launch(case, runs, out, tile)
    torch.testing.assert_close(out.cpu().double(), case.expected(), rtol=0, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.usefixtures("on_gpu")
def test_a_captured_launch_follows_lengths_and_bits() -> None:
    case = make([12, 12], [300, 170])
    out = torch.full_like(case.query, 7.0)
    launch(case, 4, out)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(case, 4, out)
    other = make([12, 12], [300, 170])
    case.query.copy_(other.query.flip(0))
    case.rows.prefix_lens[0] = case.prefix_lens[0] = 130
    case.rows.visible[0] = case.rows.visible[1]
    case.seen[0] = case.seen[1]
    out.fill_(7.0)
    graph.replay()
    torch.testing.assert_close(out.cpu().double(), case.expected(), rtol=0, atol=1e-5)
