"""Engines on the bundled models: their settings, and a process of its own for each, because an engine does not leave
one as it was."""

import json
import os
import subprocess
import sys
from typing import Any

from vllm_specext.demo.server import TARGET

MOST_REQUESTS = 16
ENGINE: dict[str, Any] = {
    "model": str(TARGET),
    # In float32 two ways of computing the same logits do not disagree about the largest one.
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": MOST_REQUESTS,
    "kv_cache_memory_bytes": 512 << 20,
    "enable_prefix_caching": False,
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def in_own_process(module: str, name: str, request: Any) -> Any:
    """What ``python -m module --one REQUEST`` prints as its last line, both in JSON; ``name`` is for its failure."""
    environment = os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    command = [sys.executable, "-m", module, "--one", json.dumps(request)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: the engine ended.\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
