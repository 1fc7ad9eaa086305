"""An engine on the bundled models in a process of its own, because an engine does not leave a process as it was."""

import json
import os
import subprocess
import sys
from typing import Any

from vllm_specext.measure.arguments import compared_arguments, served
from vllm_specext.measure.engine import Engine

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def bundled_engine(speculative: dict[str, Any] | None, counts: bool = True) -> Engine:
    """An engine on the bundled target in this process."""
    arguments = [f"--model={served(None)}", *compared_arguments(None, ["--max-model-len=512"])]
    return Engine(arguments, speculative, counts)


def in_own_process(module: str, name: str, request: Any, shows: bool = False) -> Any:
    """Run ``python -m module --one REQUEST`` and return the last line that it prints, both in JSON; ``name`` is for
    the message where it fails. Whether what it says meanwhile on standard error is shown."""
    environment = os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    command = [sys.executable, "-m", module, "--one", json.dumps(request)]
    told = None if shows else subprocess.PIPE
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=told, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: the engine ended.\n{(done.stderr or '')[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
