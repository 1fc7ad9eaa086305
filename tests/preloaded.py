"""What forks of the tests find imported: what all others do, and more that an engine imports when it starts."""

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
