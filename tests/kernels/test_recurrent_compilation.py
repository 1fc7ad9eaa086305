"""The Triton kernels of recurrent layers compile to machine code for the GPUs that users have, checked without one."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from compiling import PROCESSORS, Launched, compiled, dumped
from recurrent_kinds import KINDS
from test_recurrent import make_rows

from vllm_specext.kernels.recurrent import BlockEnds, KeptRows
from vllm_specext.options.check import MOST_BESIDE_STATES

__all__ = ["compiled"]

SHAPES = {
    "Qwen3.5": ("delta", {"key_heads": 2, "heads": 6, "keys": 128, "values": 128}),
    "Nemotron": ("space", {"groups": 2, "heads": 16, "keys": 128, "values": 64}),
    "Falcon": ("space", {"groups": 1, "heads": 4, "keys": 256, "values": 128}),
    "by chance": ("space", {"groups": 2, "heads": 16, "keys": 128, "values": 64}),
}
"""The widths of heads that they have; the last has its states rounded by chance."""


@pytest.mark.parametrize(
    "shape",
    [pytest.param(name, marks=pytest.mark.extended if name in ("Falcon", "by chance") else ()) for name in SHAPES],
)
@pytest.mark.parametrize(
    "nodes", [24, 60, *(pytest.param(number, marks=pytest.mark.extended) for number in (5, 1 + MOST_BESIDE_STATES))]
)
@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, *(pytest.param(kind, marks=pytest.mark.extended) for kind in (torch.float16, torch.float32))],
    ids=str,
)
def test_rules_of_states_compile(
    compiled: tuple[int, Launched], shape: str, nodes: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """On an H100 and a B200 nothing of the usual trees is spilled to slower memory."""
    name, widths = SHAPES[shape]
    kind, layers = KINDS[name], 3
    kernel, path_kernels = (import_module(f"{kind.rule.package}.{each}") for each in ("kernel", "path_kernels"))
    layer = kind.make(dtype, 4, **widths)
    if shape == "by chance":
        layer = replace(layer, states=layer.states.to(torch.float16), by_chance=True)
    rows = make_rows([range(nodes)] * 2, nodes, layer.taps)
    mixed = torch.zeros(2 * nodes, layer.channels).to(dtype)
    gates = torch.zeros(2 * nodes, kind.gates * layer.heads).to(dtype)
    kept = KeptRows(mixed.expand(layers, -1, -1).clone(), gates.expand(layers, -1, -1).clone())
    slots = torch.zeros(2, dtype=torch.int32)
    out = torch.zeros(2 * nodes, layer.heads, widths["values"]).to(dtype)
    kernel.attend(mixed, gates.chunk(kind.gates, dim=1), layer, rows, slots, kept, 0, out)
    ends = BlockEnds([slots] * layers, slots)
    path_kernels.advance([layer] * layers, kept, [slots] * layers, torch.zeros(2, 7, dtype=torch.int64), slots, ends)
    assert [name for name, _ in compiled[1]] == [
        "_convolve_kernel",
        "_attend_kernel",
        "_follow_kernel",
        "_shift_kernel",
    ]
    usage = [dumped(kernel, "-res-usage", tmp_path) for _, kernel in compiled[1]]
    memory = PROCESSORS[compiled[0]].memory_of_program
    # In float32 as many rows as are allowed have no room on cards with 99 KiB.
    has_room = nodes <= 64 or dtype != torch.float32 or memory > 99 * 1024
    assert all(kernel.metadata.shared <= memory for _, kernel in compiled[1]) == has_room
    if dtype == torch.bfloat16 and compiled[0] in (90, 100) and nodes <= 64:
        assert all("STACK:0 " in text for text in usage)
