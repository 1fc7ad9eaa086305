"""Imports what every engine and every ``serve`` imports before it does anything; see ``forks.py``.

Nothing of this project: the plug-in is loaded when and how each process under test loads it.
"""

import gc
import os

# Read when these packages are imported.
os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})

# The runner for CPUs replaces vLLM's kernels before others import them, and has to come first.
from vllm.platforms import current_platform

if current_platform.is_cpu():
    import vllm.v1.worker.cpu_worker

import vllm.entrypoints.cli.main
import vllm.entrypoints.cli.serve
import vllm.model_executor.models.llama
import vllm.v1.engine.llm_engine
import vllm.v1.structured_output.backend_xgrammar  # noqa: F401
from vllm import LLM  # noqa: F401

gc.collect()
gc.freeze()  # an engine collects its own garbage several times, and need not look through all of this each time
