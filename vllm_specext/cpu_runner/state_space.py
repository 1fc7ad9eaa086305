"""Layers of Mamba-2 on a CPU where prefixes are cached. All else that they compute there, vLLM has kernels for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap


@replaces(
    "vllm.model_executor.layers.mamba.mamba_mixer2.MambaMixer2.get_kv_cache_spec",
    name="states within a prompt on a CPU",
    why="vLLM's layers say that they can leave a state at any token of a prompt, which its kernels for a CPU cannot",
    how="wrapped on a CPU: they say that they cannot, so that the scheduler ends a pass where a state is to stay",
    upstream="none known",
    until="vLLM's kernels for a CPU return the states within a prompt",
    signature="self vllm_config",
)
def _get_kv_cache_spec(original: Callable) -> Callable:
    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        spec = original(self, vllm_config)
        return replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)

    return get_kv_cache_spec


def wrap_mixer(module: Any) -> None:
    wrap(module.MambaMixer2, "get_kv_cache_spec", _get_kv_cache_spec)
