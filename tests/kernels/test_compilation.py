"""The Triton kernels compile to machine code for the GPUs that users have, checked without one."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.tree.topology import Topology

pytest.importorskip("triton")
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

CAPABILITIES = {"A100": 80, "RTX 4090": 89, "H100": 90}
SHARED_MEMORY = {80: 163, 89: 99, 90: 227}
"""KiB that a program may use."""

Launched = list[tuple[str, Any]]


class AbsentGPU:
    """What Triton asks its driver when it compiles but does not launch."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # compiled kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0


ALL = [pytest.param(number, id=name) for name, number in CAPABILITIES.items()]


@pytest.fixture(
    params=[
        pytest.param(number, id=name, marks=() if name == "H100" else pytest.mark.extended)
        for name, number in CAPABILITIES.items()
    ]
)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Launched]:
    """Launches only compile, and are listed."""
    launched: Launched = []
    stock = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        launched.append((self.__name__, stock(self, *args, grid=grid, warmup=True, **kwargs)))

    monkeypatch.setattr(JITFunction, "run", run)
    # Not `set_active`: its counterpart looks for a driver, and there is none without a GPU.
    monkeypatch.setattr(driver, "_active", AbsentGPU(request.param))
    return request.param, launched


def attend(
    head_size: int, dtype: torch.dtype, query: int, runs: int, cache: torch.dtype | None = None, **options: Any
) -> None:
    from vllm_specext.kernels.tree_attention import kernel

    requests, heads, kv_heads = 2, 8, 2
    rows = TreeRows(
        block_table=torch.zeros(requests, 4, dtype=torch.int32),
        query_start_loc=torch.arange(0, requests * query + 1, query, dtype=torch.int32),
        prefix_lens=torch.zeros(requests, dtype=torch.int32),
        visible=torch.zeros(requests, query, -(-query // 32), dtype=torch.int32),
        num_rows=requests * query,
        max_query_len=query,
        num_nodes=query,
        max_seq_len=64,
    )
    queries = torch.zeros(requests * query, heads, head_size).to(dtype)
    keys, values = torch.zeros(8, kv_heads, 16, 2 * head_size).to(cache or dtype).chunk(2, dim=-1)
    factor = torch.ones(kv_heads) if cache else None
    scales = {"q_scale": factor if queries.itemsize == 1 else None, "k_scale": factor, "v_scale": factor}
    out = torch.zeros_like(queries, dtype=torch.bfloat16 if queries.itemsize == 1 else dtype)
    options = {"scale": 0.1, "soft_cap": 0.0, "sliding_window": 0} | scales | options
    tile = kernel.tile_for(queries, keys, rows)
    kernel.tree_attention(queries, keys, values, rows, out, tile=tile, runs=runs, **options)


def compiles_and_fits(compiled: tuple[int, Launched], launch: Callable[[], None]) -> None:
    capability, launched = compiled
    launch()
    assert [name for name, _ in launched] in (["_tree_attention_kernel"], ["_tree_attention_kernel", "_merge_kernel"])
    for _, kernel in launched:
        assert kernel.asm["cubin"]
        assert kernel.metadata.shared <= SHARED_MEMORY[capability] * 1024


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(lambda: attend(64, torch.float32, 25, runs=1), id="64-fp32"),
        pytest.param(lambda: attend(80, torch.float16, 10, 2, soft_cap=30.0, sliding_window=128), id="80-fp16-capped"),
        pytest.param(lambda: attend(256, torch.bfloat16, 128, runs=3), id="256-bf16-128-nodes"),
        pytest.param(lambda: attend(96, torch.bfloat16, 60, 1, sliding_window=4096), id="96-bf16-windowed"),
    ],
)
def test_tree_attention_compiles_and_fits(compiled: tuple[int, Launched], launch: Callable[[], None]) -> None:
    compiles_and_fits(compiled, launch)


@pytest.mark.parametrize("compiled", ALL, indirect=True)
def test_the_usual_tree_fits_every_gpu(compiled: tuple[int, Launched]) -> None:
    compiles_and_fits(compiled, lambda: attend(128, torch.bfloat16, 60, runs=4))


FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(lambda: attend(128, FP8, 60, 4, FP8), id="128-split"),
        pytest.param(lambda: attend(256, FP8, 128, 1, FP8, soft_cap=30.0), id="256-128-nodes-capped"),
        pytest.param(lambda: attend(80, FP8, 10, 2, FP8, sliding_window=128), id="80-windowed"),
        pytest.param(lambda: attend(64, torch.bfloat16, 25, 4, FP8), id="64-query-in-bf16"),
        pytest.param(lambda: attend(64, torch.float16, 25, 4, torch.float8_e5m2), id="64-e5m2"),
    ],
)
def test_float8_caches_compile_where_backends_have_them(
    compiled: tuple[int, Launched], launch: Callable[[], None]
) -> None:
    if compiled[0] < 89:
        pytest.skip("vLLM refuses float8 caches on this GPU, and Triton would not compile float8 E4M3 for it")
    compiles_and_fits(compiled, launch)


def test_loads_of_keys_and_values_are_pipelined(compiled: tuple[int, Launched]) -> None:
    """Which branches before the loop, its bounds, and conversions in it can prevent."""
    attend(128, torch.bfloat16, 60, runs=4)
    if compiled[0] >= 89:
        attend(128, FP8, 60, 4, FP8)
    for name, kernel in compiled[1]:
        # The words of the bits are in any case, by which the last of the three loops waits twice.
        waits = kernel.asm["ptx"].count("cp.async.wait_group")
        assert waits == (6 if name == "_tree_attention_kernel" else 0)


def dumped(kernel: Any, what: str, folder: Path) -> str:
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, what, str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("head_size", "window"), [(64, 0), (128, 0), (128, 4096), (256, 0)])
def test_products_on_a_hopper_gpu_do_not_wait_for_each_other(
    compiled: tuple[int, Launched], head_size: int, window: int, tmp_path: Path
) -> None:
    """Its matrix units work on their own until they are waited for, which some ways of writing the loops cause ptxas to
    do after each instruction."""
    capability, launched = compiled
    if capability != 90:
        pytest.skip("other GPUs' matrix instructions are waited for by their results")
    attend(head_size, torch.bfloat16, 60, runs=4, sliding_window=window)
    machine_code = dumped(launched[0][1], "-sass", tmp_path)
    assert machine_code.count("HGMMA") > 20
    assert machine_code.count("WARPGROUP.DEPBAR") == 6  # two products in each of three loops
    assert "STACK:0" in dumped(launched[0][1], "-res-usage", tmp_path)  # nothing is put off for want of registers


def move_and_gather(dtype: torch.dtype, head_size: int, requests: int, levels: int) -> None:
    from vllm_specext.kernels.kv_compaction import kernel as compaction
    from vllm_specext.kernels.kv_gather import kernel as gather
    from vllm_specext.kernels.pointers import Caches

    layers = torch.zeros(3, 4, 8, 16, 2 * head_size).to(dtype)
    caches = Caches(half for layer in layers for half in layer.chunk(2, dim=-1))
    slots = torch.zeros(requests, levels + 1, dtype=torch.int64)
    compaction.compact(caches, slots, slots)
    gather.gather(caches, slots.flatten())


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(lambda: move_and_gather(torch.bfloat16, 128, requests=1, levels=6), id="128-bf16"),
        pytest.param(lambda: move_and_gather(torch.float8_e4m3fn, 80, requests=3, levels=40), id="80-fp8-long"),
        pytest.param(lambda: move_and_gather(torch.uint8, 5, requests=1, levels=1), id="5-bytes"),
        pytest.param(lambda: move_and_gather(torch.float32, 256, requests=64, levels=8), id="256-fp32"),
    ],
)
def test_compaction_and_gather_compile(compiled: tuple[int, Launched], launch: Callable[[], None]) -> None:
    launch()
    assert [name for name, _ in compiled[1]] == ["_compact_kernel", "_gather_kernel"]
    assert all(kernel.asm["cubin"] for _, kernel in compiled[1])


def memory_operations(ptx: str) -> list[str]:
    """Reads and writes of global memory and barriers, in order."""
    return re.findall(r"ld\.global|st\.global|bar\.sync", ptx)


@pytest.mark.parametrize("levels", [1, 6, 40])
def test_compaction_reads_before_it_writes(compiled: tuple[int, Launched], levels: int) -> None:
    """All threads of a program, or one would write what another has yet to read."""
    move_and_gather(torch.bfloat16, 128, requests=1, levels=levels)
    operations = memory_operations(compiled[1][0][1].asm["ptx"])
    written = [place for place, operation in enumerate(operations) if operation == "st.global"]
    assert operations[written[0] - 1] == operations[written[-1] + 1] == "bar.sync"


@pytest.mark.parametrize(("nodes", "levels"), [(1, 1), (59, 6), (255, 30)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_walks_compile(compiled: tuple[int, Launched], nodes: int, levels: int, dtype: torch.dtype) -> None:
    from vllm_specext.kernels.tree_walk import kernel

    drawn, drafted = torch.zeros(2, 2 * (nodes + 1), dtype=dtype)
    bounds = torch.tensor([0, nodes + 1, 2 * nodes + 2], dtype=torch.int32)
    kernel.accept_tree(drawn, drafted, bounds, torch.zeros(2, nodes + 1, dtype=torch.int64), levels)
    kernel.accept_chain(drawn, drafted, bounds, nodes + 1)
    assert [name for name, _ in compiled[1]] == ["_accept_tree_kernel", "_accept_chain_kernel"]
    assert all(kernel.asm["cubin"] for _, kernel in compiled[1])


@pytest.mark.parametrize(("nodes", "levels"), [(1, 1), (59, 6), (128, 30)])
def test_layouts_compile(compiled: tuple[int, Launched], nodes: int, levels: int) -> None:
    from vllm_specext.kernels.tree_layout import kernel

    trees = Topology.chain(4, nodes, "cpu")
    of_slots, of_requests = torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    starts, rows = torch.tensor([0, nodes + 1, 2 * nodes + 2], dtype=torch.int32), torch.zeros(2 * nodes + 2).long()
    given = of_requests, starts, of_requests, of_slots, trees, trees.ancestors[0], rows, 99
    kernel.lay_out(*given, of_requests, trees.ancestors[:2].clone())
    kernel.accepted_rows(starts[:-1], torch.zeros(2, levels + 1, dtype=torch.int64), of_requests)
    assert [name for name, _ in compiled[1]] == ["_lay_out_kernel", "_accepted_rows_kernel"]
    assert all(kernel.asm["cubin"] for _, kernel in compiled[1])


@pytest.mark.parametrize(("k", "levels", "nodes"), [(10, 6, 59), (1, 3, 3), (8, 7, 62), (10, 11, 255)])
def test_expansion_compiles(compiled: tuple[int, Launched], k: int, levels: int, nodes: int) -> None:
    from vllm_specext.kernels.tree_expansion.kernel import FusedExpansion

    growing = FusedExpansion(torch.zeros(2, k, dtype=torch.int64), torch.zeros(2, k), levels)
    growing.grow(torch.zeros(2, k, k, dtype=torch.int64), torch.zeros(2, k, k))
    growing.tree(min(nodes, growing.size))
    assert [name for name, _ in compiled[1]] == ["_grow_kernel", "_grow_kernel", "_tree_kernel"]
    assert all(kernel.asm["cubin"] for _, kernel in compiled[1])
    operations = memory_operations(compiled[1][2][1].asm["ptx"])
    ranked = operations[operations.index("st.global") :]
    assert ranked[: ranked.index("ld.global")][-1] == "bar.sync"  # ranks are written by some threads, read by others
