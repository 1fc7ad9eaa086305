"""The parts ``engine:...`` of the GPU suite on a CPU, with models of a size that one can bear."""

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.gpu_suite.engine_methods import METHODS
from benchmarks.gpu_suite.machine import ROOT

pytestmark = pytest.mark.extended
PROGRAM = """
import json, sys
import torch
torch.cpu._is_amx_tile_supported = lambda: False  # pages in bfloat16 would be packed, and trees refused
from benchmarks.gpu_suite import dummy_models, engine
from benchmarks.gpu_suite.engine_methods import Load

size = dummy_models.Size(128, 256, 8, 2, 1, 64, 512)
loads = Load(1, 32), Load(2, 32), Load(2, 32, arriving=True)
options = {"kv_cache_memory_bytes": 64 << 20, "enforce_eager": True, "max_num_batched_tokens": 512}
for row in engine.rows(sys.argv[1], size, loads, sys.argv[2], 2048, **options):
    print("row", json.dumps(row), flush=True)
"""


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_measured_at_every_load(name: str) -> None:
    program = [sys.executable, "-c", PROGRAM, name, "bfloat16" if METHODS[name].float8 else "float32"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[dict[str, Any]] = [
        json.loads(line.removeprefix("row ")) for line in done.stdout.splitlines() if line.startswith("row ")
    ]
    assert [(row["requests"], row["load"]) for row in rows] == [
        (1, "all decode"),
        (2, "all decode"),
        (2, "prompts arrive"),
    ]
    for row in rows:
        assert row["steps"] >= 40
        if name == "plain":
            assert row["tokens_per_step"] <= 1
        elif row["load"] == "all decode" and METHODS[name].fixed:
            assert row["tokens_per_step"] > 1.5  # the assumed acceptance has had its effect
