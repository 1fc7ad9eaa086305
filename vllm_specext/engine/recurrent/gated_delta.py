"""vLLM's layers with a gated delta rule: Qwen3-Next and Qwen3.5 (`kernels.gated_delta`)."""

from typing import Any

from torch import Tensor
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.platforms import current_platform
from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend, GDNAttentionMetadataBuilder

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.recurrent.kind import RecurrentKind, Verifier, keep_one_state, run
from vllm_specext.engine.recurrent.metadata import OneStateBuilder
from vllm_specext.kernels.gated_delta import GATED_DELTA_RULE, GatedDeltaLayer


def layer_of(module: Any) -> GatedDeltaLayer:
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


class GatedDeltaBackend(GDNAttentionBackend):
    """vLLM's, with this builder."""

    @staticmethod
    def get_builder_cls() -> type["GatedDeltaBuilder"]:
        return GatedDeltaBuilder


class GatedDeltaBuilder(OneStateBuilder, GDNAttentionMetadataBuilder):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_spec, self.use_spec_decode = 0, False


@replaces(
    "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn.QwenGatedDeltaNetAttention.enable_fused_gdn_spec_decode",
    name="gated delta rule of drafts",
    why="vLLM's kernels verify chains alone",
    how="set on the target's instances: rows of drafts run our kernel, all others vLLM's method",
    upstream="vllm#42910 verifies trees of hybrid targets with a state for each node",
    until="vLLM verifies trees whose shape differs by request",
    kind="set",
    also=("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn.QwenGatedDeltaNetAttention._forward_core",),
)
def wrap(module: Any, verifier: Verifier) -> None:
    stock = module._forward_core

    def _forward_core(mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor) -> None:
        run(
            module.prefix,
            lambda step: verifier.verify(step, mixed_qkv, (a, b), core_attn_out),
            lambda rows: stock(mixed_qkv=mixed_qkv[rows], b=b[rows], a=a[rows], core_attn_out=core_attn_out[rows]),
        )

    keep_one_state(module, GatedDeltaBackend)
    module.enable_fused_gdn_spec_decode = False
    module._forward_core = _forward_core


KIND = RecurrentKind(
    module=QwenGatedDeltaNetAttention,
    rule=GATED_DELTA_RULE,
    gates=2,
    heads=lambda module: int(module.num_v_heads),
    layer_of=layer_of,
    wrap=wrap,
)
