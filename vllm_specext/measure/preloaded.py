"""Imports what every engine and every ``serve`` imports before it does anything; see ``forks.py``.

The plug-in is loaded when and how each process loads it. Where an import fails, it fails again in the process that
needs it, which can say so.
"""

import gc
import os
from contextlib import suppress

from vllm_specext.measure.arguments import ENVIRONMENT
from vllm_specext.measure.inspection import look_here
from vllm_specext.vllm_process import vllm_distribution

# A signal to the command's processes, as "make" and a closed terminal send it, must not end this one: the command would
# take the processes that were forked from it for ended, and leave them running.
os.setsid()
# Read when these packages are imported.
os.environ.update(ENVIRONMENT | {"OMP_NUM_THREADS": "1"})

with suppress(Exception), vllm_distribution():
    # The runner for CPUs replaces vLLM's kernels before others import them, and has to come first.
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        import vllm.v1.worker.cpu_worker

    import vllm.entrypoints.cli.main
    import vllm.entrypoints.cli.serve
    import vllm.entrypoints.openai.api_server
    import vllm.model_executor.models.llama
    import vllm.v1.engine.llm_engine
    import vllm.v1.structured_output.backend_xgrammar  # noqa: F401
    from vllm import LLM  # noqa: F401

    look_here()

gc.collect()
gc.freeze()  # an engine collects its own garbage several times, and need not look through all of this each time
