"""The Triton kernels compile to machine code for the GPUs that users have, checked without one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vllm_specext.kernels.tree_attention import TreeRows

pytest.importorskip("triton")
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


@pytest.fixture(params=CAPABILITIES.values(), ids=CAPABILITIES.keys())
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


def attend(head_size: int, dtype: torch.dtype, query: int, splits: int, **options: Any) -> None:
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
    queries = torch.zeros(requests * query, heads, head_size, dtype=dtype)
    keys, values = torch.zeros(8, kv_heads, 16, 2 * head_size, dtype=dtype).chunk(2, dim=-1)
    options = {"scale": 0.1, "soft_cap": 0.0, "sliding_window": 0} | options
    kernel.tree_attention(queries, keys, values, rows, torch.zeros_like(queries), splits=splits, **options)


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(lambda: attend(128, torch.bfloat16, 60, splits=4), id="128-bf16-split"),
        pytest.param(lambda: attend(64, torch.float32, 25, splits=1), id="64-fp32"),
        pytest.param(lambda: attend(80, torch.float16, 10, 2, soft_cap=30.0, sliding_window=128), id="80-fp16-capped"),
        pytest.param(lambda: attend(256, torch.bfloat16, 128, splits=3), id="256-bf16-128-nodes"),
        pytest.param(lambda: attend(96, torch.bfloat16, 60, 1, sliding_window=4096), id="96-bf16-windowed"),
    ],
)
def test_tree_attention_compiles_and_fits(compiled: tuple[int, Launched], launch: Callable[[], None]) -> None:
    capability, launched = compiled
    launch()
    assert [name for name, _ in launched] in (["_tree_attention_kernel"], ["_tree_attention_kernel", "_merge_kernel"])
    for _, kernel in launched:
        assert kernel.asm["cubin"]
        assert kernel.metadata.shared <= SHARED_MEMORY[capability] * 1024
