"""vLLM's per-model state with our verification in place of its rejection sampler."""

from functools import cache
from typing import Any

from vllm.v1.worker.gpu.model_states.interface import ModelState
from vllm.v1.worker.gpu.sample.sampler import Sampler

from vllm_specext.engine.verification import TargetOnlyVerifier


@cache
def with_target_only_verification(base: type[ModelState]) -> type[ModelState]:
    """Subclass of ``base``, the state vLLM chose for the target, that verifies with the target's own sampler."""

    class SpecExtModelState(base):
        def custom_sampler(self, sampler: Sampler) -> tuple[Any, Any]:
            return sampler, TargetOnlyVerifier(sampler, self.vllm_config.speculative_config, self.device)

    SpecExtModelState.__name__ = SpecExtModelState.__qualname__ = f"SpecExt{base.__name__}"
    return SpecExtModelState
