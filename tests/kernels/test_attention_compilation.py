"""The Triton kernel of tree attention compiles to fast machine code for the GPUs that users have, checked without one.

``make test-tritons`` runs this with other versions of Triton than the installed one.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiling import EVERY, PROCESSORS, Launched, compiled, dumped

from vllm_specext.kernels.tree_attention import TreeRows, after_prefix, launching
from vllm_specext.kernels.tree_attention.tiles import launch_for

__all__ = ["compiled"]

extended = pytest.mark.extended


def usual(
    head_size: int, dtype: torch.dtype, query: int, cache: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor, TreeRows]:
    """Queries, a cache and ``query`` rows for each of two requests, with 4 heads for each of the cache, as in
    Llama-3-8B."""
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
    return queries, torch.zeros(8, kv_heads, 16, 2 * head_size).to(cache or dtype), rows


def attend(
    capability: int,
    head_size: int,
    dtype: torch.dtype,
    query: int,
    *,
    runs: int = 4,
    cache: torch.dtype | None = None,
    soft_cap: float = 0.0,
    sliding_window: int = 0,
    sinks: bool = False,
) -> None:
    queries, both, rows = usual(head_size, dtype, query, cache)
    keys, values = both.chunk(2, dim=-1)
    factor = torch.ones(keys.shape[1]) if cache else None
    scales = {"q_scale": factor if queries.itemsize == 1 else None, "k_scale": factor, "v_scale": factor}
    out = torch.zeros_like(queries, dtype=torch.bfloat16 if queries.itemsize == 1 else dtype)
    launch = launch_for(queries, keys, values, rows, PROCESSORS[capability])._replace(runs=runs)
    options: dict[str, Any] = {"scale": 0.1, "soft_cap": soft_cap, "sliding_window": sliding_window}
    options["sinks"] = torch.zeros(queries.shape[1], dtype=dtype) if sinks else None
    launching.tree_attention(queries, keys, values, rows, out, launch=launch, **options, **scales)


def compiles_and_fits(compiled: tuple[int, Launched], launch: Callable[[int], None]) -> None:
    capability, launched = compiled
    launch(capability)
    assert [name for name, _ in launched] in (["_tree_attention_kernel"], ["_tree_attention_kernel", "_merge_kernel"])
    for _, made in launched:
        assert made.asm["cubin"]
        assert made.metadata.shared <= PROCESSORS[capability].memory_of_program


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(lambda gpu: attend(gpu, 64, torch.float32, 25, runs=1), id="64-fp32", marks=extended),
        pytest.param(
            lambda gpu: attend(gpu, 80, torch.float16, 10, runs=2, soft_cap=30.0, sliding_window=128), id="80-capped"
        ),
        pytest.param(
            lambda gpu: attend(gpu, 256, torch.bfloat16, 128, runs=3), id="256-bf16-128-nodes", marks=extended
        ),
        pytest.param(
            lambda gpu: attend(gpu, 96, torch.bfloat16, 60, runs=1, sliding_window=4096),
            id="96-windowed",
            marks=extended,
        ),
        pytest.param(lambda gpu: attend(gpu, 512, torch.bfloat16, 60), id="512-bf16"),
        pytest.param(lambda gpu: attend(gpu, 512, torch.float32, 60), id="512-fp32", marks=extended),
        pytest.param(
            lambda gpu: attend(gpu, 64, torch.bfloat16, 60, sliding_window=128, sinks=True), id="64-windowed-sinks"
        ),
        pytest.param(
            lambda gpu: attend(gpu, 128, torch.float16, 4, soft_cap=30.0, sinks=True),
            id="128-capped-sinks",
            marks=extended,
        ),
    ],
)
def test_tree_attention_compiles_and_fits(compiled: tuple[int, Launched], launch: Callable[[int], None]) -> None:
    compiles_and_fits(compiled, launch)


def attend_to_latent(gpu: int, query: int, heads: int, size: int = 512, further: int = 64) -> None:
    """In bfloat16, the type of the backends."""
    _, _, rows = usual(64, torch.bfloat16, query)
    queries = torch.zeros(len(rows.prefix_lens) * query, heads, size + further, dtype=torch.bfloat16)
    keys = torch.zeros(8, 1, 64, size + further, dtype=torch.bfloat16)
    values, out = keys[..., :size], queries[..., :size].clone()
    launch = launch_for(queries, keys, values, rows, PROCESSORS[gpu])._replace(runs=4)
    options: dict[str, Any] = {"scale": 0.1, "soft_cap": 0.0, "sliding_window": 0}
    launching.tree_attention(queries, keys, values, rows, out, launch=launch, **options)


@pytest.mark.parametrize(
    ("query", "heads", "size", "further"),
    [
        (60, 16, 512, 64),  # DeepSeek V3's on 8 GPUs
        pytest.param(16, 128, 512, 64, marks=extended),
        pytest.param(4, 2, 512, 64, marks=extended),
        pytest.param(60, 40, 256, 32, marks=extended),
    ],
)
def test_attention_over_a_latent_cache_compiles_and_fits(
    compiled: tuple[int, Launched], query: int, heads: int, size: int, further: int, tmp_path: Path
) -> None:
    capability, launched = compiled
    compiles_and_fits(compiled, lambda gpu: attend_to_latent(gpu, query, heads, size, further))
    if capability == 90 and size == 512 and query == 60:
        bodies = loops(dumped(launched[0][1], "-sass", tmp_path), "HGMMA")
        assert len(bodies) == 3
        # The results of 64 rows take half of the registers. Hardly anything is put off in the loop over the prefix.
        assert sum("LDL" in each or "STL" in each for each in bodies[0]) < len(bodies[0]) // 50


@pytest.mark.parametrize("compiled", EVERY, indirect=True)
@pytest.mark.parametrize(
    ("head_size", "dtype", "soft_cap"),
    [(128, torch.bfloat16, 0.0), (80, torch.float16, 30.0), (256, torch.bfloat16, 0.0)],
)
def test_attention_after_the_prefix_compiles(
    compiled: tuple[int, Launched], head_size: int, dtype: torch.dtype, soft_cap: float
) -> None:
    query, both, rows = usual(head_size, dtype, 60)
    keys, values = both.chunk(2, dim=-1)
    lse = torch.zeros(query.shape[1], len(query))
    after_prefix.attend_to_nodes(query, keys, values, rows, query.clone(), lse, scale=0.1, soft_cap=soft_cap)
    ((name, made),) = compiled[1]
    assert name == "_attend_to_nodes_kernel"
    assert made.asm["cubin"]
    assert made.metadata.shared <= PROCESSORS[compiled[0]].memory_of_program


def test_the_usual_tree_fits_every_gpu(compiled: tuple[int, Launched]) -> None:
    compiles_and_fits(compiled, lambda gpu: attend(gpu, 128, torch.bfloat16, 60))


FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(lambda gpu: attend(gpu, 128, FP8, 60, cache=FP8), id="128-split"),
        pytest.param(
            lambda gpu: attend(gpu, 256, FP8, 128, runs=1, cache=FP8, soft_cap=30.0), id="256-capped", marks=extended
        ),
        pytest.param(
            lambda gpu: attend(gpu, 80, FP8, 10, runs=2, cache=FP8, sliding_window=128),
            id="80-windowed",
            marks=extended,
        ),
        pytest.param(lambda gpu: attend(gpu, 64, torch.bfloat16, 25, cache=FP8), id="64-query-in-bf16", marks=extended),
        pytest.param(
            lambda gpu: attend(gpu, 64, torch.float16, 25, cache=torch.float8_e5m2), id="64-e5m2", marks=extended
        ),
    ],
)
def test_float8_caches_compile_where_backends_have_them(
    compiled: tuple[int, Launched], launch: Callable[[int], None]
) -> None:
    if compiled[0] < 89:
        pytest.skip("vLLM refuses float8 caches on this GPU, and Triton would not compile float8 E4M3 for it")
    compiles_and_fits(compiled, launch)


def fetched_ahead(ir: str) -> tuple[int, int]:
    """Of the first loop in Triton's IR for GPUs: how many fetches are still under way when a tile is begun, and how
    many buffers the keys have."""
    waits = re.findall(r"async_wait[^\n]*num = (\d+)", ir)
    buffers = re.findall(r"local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x", ir)
    return int(waits[0]), int(buffers[0])


A_SECOND_PROGRAM_IS_BETTER = {(80, 16), (89, 7), (89, 4), (120, 7), (120, 4)}
"""Whose place on a processor a third stage would take."""


@pytest.mark.parametrize("rows", [60, *(pytest.param(rows, marks=extended) for rows in (16, 7, 32, 4))])
def test_keys_and_values_are_fetched_two_tiles_ahead(compiled: tuple[int, Launched], rows: int) -> None:
    """Branches before the loop, its bounds, conversions in it, and addresses that are loaded in the same turn, can
    prevent that."""
    capability, launched = compiled
    attend(capability, 128, torch.bfloat16, rows)
    stages = launched[0][1].metadata.num_stages
    waits, buffers = fetched_ahead(launched[0][1].asm["ttgir"])
    if (capability, rows) in A_SECOND_PROGRAM_IS_BETTER:
        assert (stages, waits, buffers) == (2, 0, 1)
        return
    # Where the queries are in registers, so is the tile that is worked on.
    in_memory = PROCESSORS[capability].queries_in_memory and rows * 4 >= 64
    assert (stages, waits, buffers) == (3, 2, 3 if in_memory else 2)


@extended
def test_sinks_change_nothing_about_what_is_fetched_ahead(compiled: tuple[int, Launched]) -> None:
    capability, launched = compiled
    found = []
    for sinks in (False, True):
        attend(capability, 64, torch.bfloat16, 60, sinks=sinks)
        found.append(fetched_ahead(launched[0][1].asm["ttgir"]))
        launched.clear()
    assert found[0] == found[1]


def test_float8_caches_are_fetched_ahead_too(compiled: tuple[int, Launched]) -> None:
    capability, launched = compiled
    if capability < 89:
        pytest.skip("vLLM refuses float8 caches on this GPU")
    attend(capability, 128, FP8, 60, cache=FP8)
    assert fetched_ahead(launched[0][1].asm["ttgir"])[0] == 2


def loops(machine_code: str, product: str) -> list[list[str]]:
    """The instructions of each loop that has a ``product``, from its first one to the branch back there."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", machine_code)]
    found = []
    for end, text in code:
        back = re.search(r"\bBRA\b.* (?:`\(.*\)|0x([0-9a-f]+))", text)
        if back and back[1] and int(back[1], 16) < end:
            body = [each for at, each in code if int(back[1], 16) <= at <= end]
            found += [body] if any(product in each for each in body) else []
    return found


HOPPER_SHAPES = [
    (128, 60, 0, False),
    (64, 60, 128, True),
    *(
        pytest.param(*shape, False, marks=extended)
        for shape in ((128, 16, 0), (128, 60, 4096), (64, 60, 0), (128, 32, 0), (256, 60, 0))
    ),
]


@pytest.mark.parametrize(("head_size", "rows", "window", "sinks"), HOPPER_SHAPES)
def test_products_on_a_hopper_gpu_do_not_wait_for_each_other(
    compiled: tuple[int, Launched], head_size: int, rows: int, window: int, sinks: bool, tmp_path: Path
) -> None:
    """Its matrix units work on their own until they are waited for, which some ways of writing the loops cause ptxas to
    do after each instruction."""
    capability, launched = compiled
    if capability != 90:
        pytest.skip("other GPUs' matrix instructions are waited for by their results")
    attend(capability, head_size, torch.bfloat16, rows, sliding_window=window, sinks=sinks)
    machine_code = dumped(launched[0][1], "-sass", tmp_path)
    bodies = loops(machine_code, "HGMMA")
    assert len(bodies) == 3
    for body in bodies:
        assert sum("HGMMA" in each for each in body) >= 6
        assert sum("WARPGROUP.DEPBAR" in each for each in body) == 1  # for the scores; the last product goes on
        assert not any("LDL" in each or "STL" in each for each in body)  # nothing is put off for want of registers
