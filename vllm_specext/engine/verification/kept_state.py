"""What verification keeps beside the target, in memory that outlasts vLLM's sleep mode: vLLM makes it while it loads
the target."""

from functools import cache
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.worker.gpu.model_states.interface import ModelState
from vllm.v1.worker.gpu.sample.sampler import Sampler

from vllm_specext.engine.kept_memory import kept_memory


@cache
def with_kept_memory(base: Any) -> type[ModelState]:
    """Subclass of ``base``, vLLM's per-model state."""

    class KeptModelState(base):
        def __init__(self, vllm_config: VllmConfig, *args: Any) -> None:
            with kept_memory(vllm_config):
                super().__init__(vllm_config, *args)

        def custom_sampler(self, sampler: Sampler) -> tuple[Any, Any]:
            with kept_memory(self.vllm_config):
                own: tuple[Any, Any] = super().custom_sampler(sampler)
                return own

    return KeptModelState
