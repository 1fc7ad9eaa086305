"""vLLM's layers with a gated delta rule, as our kernels read them (`kernels.gated_delta`)."""

from typing import Any

from torch import Tensor
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.platforms import current_platform

from vllm_specext.kernels.gated_delta import GatedDeltaLayer


def recurrent_layers(vllm_config: VllmConfig) -> dict[str, Any]:
    """The target's layers of this kind by name, as vLLM's metadata has them."""
    return get_layers_from_vllm_config(vllm_config, QwenGatedDeltaNetAttention)


def layer_of(module: Any) -> GatedDeltaLayer:
    """The weights of vLLM's ``module``, and its states as they lie in the cache that it has now."""
    conv_states, states = module.kv_cache
    if not is_conv_state_dim_first():
        conv_states = conv_states.transpose(1, 2)
    weight = _conv_weight(module)
    if current_platform.is_cpu():
        # Whatever their shape says, states on a CPU are keys by values, and on a GPU values by keys.
        states = states.view(*states.shape[:2], *states.shape[:1:-1])
    else:
        states = states.transpose(2, 3)
    return GatedDeltaLayer(
        conv_weight=weight,
        decay=module.A_log,
        step_bias=module.dt_bias,
        # vLLM keeps more inputs where its own way to verify drafts needs them.
        conv_states=conv_states[..., : weight.shape[1] - 1],
        states=states,
        key_heads=module.num_k_heads // module.tp_size,
    )


def _conv_weight(module: Any) -> Tensor:
    """``[C, W]``; vLLM packs it for some CPUs, and keeps the plain one beside it. Where requests may have adapters, the
    layer is in another."""
    conv = getattr(module.conv1d, "base_layer", module.conv1d)
    plain: Tensor | None = getattr(conv, "_cpu_unpacked_conv_weight", None)
    return conv.weight.squeeze(1) if plain is None else plain
