"""Recurrent states that are those of the accepted text when vLLM looks for the ones where blocks of tokens end."""

from functools import cache
from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState


@cache
def with_one_state(base: Any) -> Any:
    """Subclass of ``base``, vLLM's per-model state, which does not expect a state for each accepted row: the one that
    there is has gone on along them."""
    if not issubclass(base, MambaHybridModelState):
        return base

    class OneState(base):
        def postprocess_state(self, idx_mapping: Tensor, num_sampled: Tensor | int, *args: Any, **kwargs: Any) -> None:
            super().postprocess_state(idx_mapping, 1, *args, **kwargs)

    return OneState
