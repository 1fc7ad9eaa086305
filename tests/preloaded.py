"""What forks of the tests find imported: what all others do, more that an engine imports when it starts, and no process
that waits for another by spinning.

vLLM's processes look for a second whether there is something to do before they sleep. Here this would take the cores of
what runs beside them.
"""

from contextlib import suppress
from importlib import import_module

import vllm_specext.measure.preloaded  # noqa: F401  # which has to import vLLM's parts in their order

with suppress(Exception):
    for name in (
        "vllm.compilation.backends",
        "vllm.model_executor.layers.quantization.online.base",
        "vllm.v1.core.sched.scheduler",
    ):
        import_module(name)

    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    SpinCondition.__init__.__defaults__ = (0.0,)
