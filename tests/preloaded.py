"""What forks of the tests find imported: what all others do, and more that an engine imports when it starts."""

import os
from contextlib import suppress
from importlib import import_module

import vllm_specext.measure.preloaded  # noqa: F401  # which has to import vLLM's parts in their order

if os.environ.get("FILL_NEW_MEMORY"):
    # New memory is zeros on a CPU more often than not, and what others have left on a GPU. Here it holds NaN.
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(1).isnan()

with suppress(Exception):
    for name in (
        "vllm.compilation.backends",
        "vllm.model_executor.layers.quantization.online.base",
        "vllm.v1.core.sched.scheduler",
    ):
        import_module(name)
