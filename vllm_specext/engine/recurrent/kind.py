"""What differs between vLLM's classes of layers with a recurrent state, and what all of them are made to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor
from vllm.forward_context import get_forward_context

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.recurrent.metadata import OneStateMetadata
from vllm_specext.kernels.recurrent import RecurrentLayer, StateRule


class Verifier(Protocol):
    def verify(self, step: OneStateMetadata, mixed: Tensor, gates: Sequence[Tensor], out: Tensor) -> None:
        """Write what the rows of the trees of ``step`` get to ``out`` ``[T, H, V]``, and keep what they were."""


@dataclass(frozen=True)
class RecurrentKind:
    """Layers of one class; a module of it has vLLM's ``conv_kernel_size``, ``conv_dim`` and ``tp_size``."""

    module: type[Any]
    rule: StateRule
    gates: int
    """How many numbers a head has for each row."""
    heads: Callable[[Any], int]
    """Of a module, of all ranks."""
    layer_of: Callable[[Any], RecurrentLayer]
    """The weights of a module, and its states as they lie in the cache that it has now."""
    wrap: Callable[[Any, Verifier], None]
    """Have a module verify drafts by this."""


@replaces(
    "vllm.model_executor.layers.mamba.abstract.MambaBase.get_kv_cache_spec",
    name="states of recurrent layers",
    why="vLLM's kernels verify chains alone, and keep a state for each row, megabytes each, and room for their inputs",
    how="set on the target's instances: no state is kept for drafts, and the metadata is built as if there were none",
    upstream="vllm#42910 verifies trees of hybrid targets with a state for each node",
    until="vLLM verifies trees whose shape differs by request",
    kind="set",
    also=(
        "vllm.model_executor.layers.mamba.abstract.MambaBase.get_attn_backend",
        "vllm.model_executor.layers.mamba.gdn.base.GatedDeltaNetAttention.num_spec",
        "vllm.model_executor.layers.mamba.mamba_mixer2.MambaMixer2.num_spec",
    ),
)
def keep_one_state(module: Any, backend: type[Any]) -> None:
    """Have vLLM's ``module`` keep one state for each request, and its metadata be built by ``backend``."""
    spec = module.get_kv_cache_spec

    def get_kv_cache_spec(vllm_config: Any) -> Any:
        return replace(spec(vllm_config), num_speculative_blocks=0)

    module.num_spec = 0
    module.get_kv_cache_spec = get_kv_cache_spec
    module.get_attn_backend = lambda: backend


def run(prefix: str, verify: Callable[[OneStateMetadata], None], stock: Callable[[slice], None]) -> None:
    """Have the layer ``prefix`` run the rows of this step that are drafts by ``verify``, and the others, with vLLM's
    metadata of them, by ``stock``."""
    steps = get_forward_context().attn_metadata
    step = steps.get(prefix) if isinstance(steps, dict) else None
    if not isinstance(step, OneStateMetadata) or step.trees is None:
        stock(slice(None))
        return
    verify(step)
    if step.others is not None:
        steps[prefix] = step.others
        stock(slice(step.trees.num_rows, None))
        steps[prefix] = step
