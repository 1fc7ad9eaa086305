"""The Triton kernels compile to machine code for the GPUs that users have, checked without one.

``make test-tritons`` runs this with other versions of Triton than the installed one.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compiling import Launched, compiled, dumped

from vllm_specext.tree.topology import Topology

__all__ = ["compiled"]


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


@pytest.mark.parametrize(("nodes", "vocabulary"), [(1, 2048), (59, 151936)])
def test_penalties_bad_words_and_budgets_compile(compiled: tuple[int, Launched], nodes: int, vocabulary: int) -> None:
    from vllm_specext.kernels.path_text import kernel
    from vllm_specext.kernels.path_text.rows import BadWords, Paths, Penalties, Said, Thinking

    rows, parents = torch.zeros(2, dtype=torch.int32), torch.zeros(4, nodes + 1, dtype=torch.int64)
    paths = Paths(rows, rows, rows, parents, 6)
    logits, of_slots, strengths = torch.zeros(2, vocabulary), torch.zeros(4, dtype=torch.int32), torch.ones(4)
    counts = torch.zeros(4, vocabulary, dtype=torch.int32)
    kernel.penalise(logits, paths, Penalties(strengths, strengths, strengths, counts[:, : vocabulary // 32], counts))
    said, marker = Said(counts, of_slots, of_slots), of_slots[:3]
    kernel.ban(logits, paths, BadWords(counts, counts, of_slots), said, 2)
    kernel.end_thinking(logits, paths, Thinking(of_slots, of_slots, of_slots, marker, marker, marker), said)
    assert [name for name, _ in compiled[1]] == ["_penalties_kernel", "_bad_words_kernel", "_thinking_kernel"]
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


@pytest.mark.parametrize("requests", [1, 1024])
@pytest.mark.parametrize("all_count", [True, False])
def test_calibration_compiles(compiled: tuple[int, Launched], requests: int, all_count: bool) -> None:
    from vllm_specext.kernels.calibration.kernel import calibrate
    from vllm_specext.tree.calibration import Learned

    slots, of_slots = torch.zeros(requests, dtype=torch.int32), torch.zeros(1024)
    counts = None if all_count else slots.to(torch.uint8)
    calibrate(Learned.nothing("cpu"), slots, of_slots, of_slots, slots, requests, counts)
    assert [name for name, _ in compiled[1]] == ["_calibrate_kernel"]
    assert compiled[1][0][1].asm["cubin"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("count", "k"), [(128256, 10), (128256, 1), (32000, 64), (2048, 8)])
def test_best_tokens_compile(
    compiled: tuple[int, Launched], count: int, k: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    from vllm_specext.kernels.best_tokens.kernel import best_tokens

    best_tokens(torch.zeros(2, count, dtype=dtype), k, torch.ones(2))
    assert [name for name, _ in compiled[1]] == ["_best_of_blocks_kernel", "_best_of_rows_kernel"]
    for _, kernel in compiled[1]:
        usage = dumped(kernel, "-res-usage", tmp_path)
        assert "STACK:0 " in usage  # nothing is spilled
        assert int(re.findall(r"REG:(\d+)", usage)[0]) <= 128  # or a processor holds fewer than four programs


@pytest.mark.parametrize(("rows", "page_size"), [(1, 16), (10, 16), (7, 784), (1024, 1)])
def test_kv_slots_compile(compiled: tuple[int, Launched], rows: int, page_size: int) -> None:
    from vllm_specext.kernels.kv_slots.kernel import kv_slots

    table, slots = torch.zeros(3, 8, dtype=torch.int32), torch.zeros(3, rows, dtype=torch.int64)
    for written in (torch.ones(3, 1, dtype=torch.bool).expand(3, rows), torch.ones(3, rows, dtype=torch.bool)):
        kv_slots(table, slots, written, page_size, 8 * page_size)
    assert [name for name, _ in compiled[1]] == ["_kv_slots_kernel"] * 2
    assert compiled[1][0][1].asm["cubin"] == compiled[1][1][1].asm["cubin"]  # whatever the strides are
