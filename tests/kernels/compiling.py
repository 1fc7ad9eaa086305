"""Compiling for GPUs that are not there: what the tests of compilation share."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpus import A100, B200, H100, RTX_4090, RTX_5090

pytest.importorskip("triton")
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

CAPABILITIES = {"A100": 80, "RTX 4090": 89, "H100": 90, "B200": 100, "RTX 5090": 120}
PROCESSORS = {80: A100, 89: RTX_4090, 90: H100, 100: B200, 120: RTX_5090}

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


EVERY = [pytest.param(number, id=name) for name, number in CAPABILITIES.items()]


@pytest.fixture(
    params=[
        pytest.param(number, id=name, marks=() if name == "H100" else pytest.mark.extended)
        for name, number in CAPABILITIES.items()
    ]
)
def compiled(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Launched]:
    """Launches only compile, and are listed. What other runs have left in Triton's cache shows nothing."""
    assert tl.core.is_builtin(tl.debug_barrier), "something has replaced Triton's barrier in this process"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    launched: Launched = []
    stock = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        launched.append((self.__name__, stock(self, *args, grid=grid, warmup=True, **kwargs)))

    monkeypatch.setattr(JITFunction, "run", run)
    # Not `set_active`: its counterpart looks for a driver, and there is none without a GPU.
    monkeypatch.setattr(driver, "_active", AbsentGPU(request.param))
    return request.param, launched


def dumped(kernel: Any, what: str, folder: Path) -> str:
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, what, str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
