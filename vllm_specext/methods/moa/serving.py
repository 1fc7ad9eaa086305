"""MoA's drafter of vLLM layers: tensor-parallel linears, paged keys and values of self- and cross-attention, the
target's embedding and ``lm_head``.

The arithmetic is that of ``model.py``, which is the specification; a test holds the two together. Layer self-attention
is the plain module: it needs no cache, and its layers lie in every rank whole. Shapes: ``T`` rows, ``E`` hidden size,
``L`` layers of the target, ``Hkv`` and ``D`` its heads in the cache and their size.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_gather
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.models.llama import LlamaAttention, LlamaMLP
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix

from vllm_specext.engine.drafting.draft_head import DraftHead
from vllm_specext.methods.checkpoints import finite, only_weights
from vllm_specext.methods.layers import KV, Attention, Rotary
from vllm_specext.methods.moa.checkpoint import LayerShape, MoAShape
from vllm_specext.methods.moa.model import DecoderLayer


class FusedAttention(Attention):
    def attend(self, queries: Tensor, kv: KV, mask: Tensor | None) -> Tensor:
        keys, values = (self.repeat(one) for one in kv)
        return self.merge(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask))


class LayerSelfAttention(DecoderLayer):
    """The plain layer with torch's fused attention."""

    def __init__(self, shape: LayerShape, rms_norm_eps: float, rotary: Rotary) -> None:
        super().__init__(shape, rms_norm_eps, rotary)
        self.self_attn = FusedAttention(
            shape.width, shape.heads, shape.kv_heads, shape.head_dim, rotary, qkv_bias=shape.qkv_bias
        )


class CachedLayer(nn.Module):
    """A Llama layer whose keys and values are written apart from its queries."""

    def __init__(self, vllm_config: VllmConfig, config: PretrainedConfig, shape: LayerShape, prefix: str) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(
            config=config,
            hidden_size=shape.width,
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            max_position_embeddings=config.max_position_embeddings,
            bias=shape.qkv_bias,
            cache_config=vllm_config.cache_config,
            prefix=f"{prefix}.self_attn",
        )
        self.mlp = LlamaMLP(shape.width, shape.mlp_size, hidden_act="silu", prefix=f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(shape.width, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.width, eps=config.rms_norm_eps)

    def project(self, positions: Tensor, stream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of ``stream`` ``[T, E]``, queries and keys with their rotary positions."""
        attention = self.self_attn
        qkv, _ = attention.qkv_proj(self.input_layernorm(stream))
        q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
        return *attention.rotary_emb(positions, q, k), v

    def forward(self, positions: Tensor, hidden: Tensor, *, writes: bool) -> Tensor:
        """``hidden`` ``[T, E]`` over what is in the cache, where its own keys and values go first if it ``writes``."""
        q, k, v = self.project(positions, hidden)
        attended = self.self_attn.attn(q, k, v) if writes else self.self_attn.attn(q, None, None)
        hidden = hidden + self.self_attn.o_proj(attended)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


@support_torch_compile
class MoAModel(nn.Module):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", layer_id: int = 0) -> None:
        super().__init__()
        assert vllm_config.speculative_config is not None
        config = vllm_config.speculative_config.draft_model_config.hf_config
        shape = _shape(config)
        # Only self-attention keeps the target's stretched frequencies.
        unscaled = copy(config)
        unscaled.rope_parameters = {"rope_type": "default", "rope_theta": shape.rope_theta}
        # vLLM tells attention layers apart by the number in their name, so ours follow the target's.
        names = (maybe_prefix(prefix, f"layers.{layer_id + place}") for place in range(2))
        self.self_attention = CachedLayer(vllm_config, config, shape.self_attention, next(names))
        self.cross_attention = CachedLayer(vllm_config, unscaled, shape.cross_attention, next(names))
        if shape.layer_self_attention is not None:
            rotary = Rotary(shape.rope_theta)
            self.layer_self_attention = LayerSelfAttention(shape.layer_self_attention, shape.rms_norm_eps, rotary)
        self.Ekv2E = nn.Linear(shape.kv_width, shape.hidden_size)
        self.embed_tokens: nn.Module  # the target's, set when both are loaded
        # The target's own modules, which are not ours to load: set by the speculator. Empty for no inference.
        self.target_layers: tuple[nn.Module, ...] = ()
        self.target_norm: tuple[nn.Module, ...] = ()

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Features ``[T, E]`` of drafted tokens, which the target's ``lm_head`` reads."""
        hidden = self.self_attention(positions, self.embed_tokens(input_ids), writes=True)
        hidden = self.cross_attention(positions, hidden, writes=False)
        residual = None
        for layer in self.target_layers:
            hidden, residual = layer(positions, hidden, residual)
        for norm in self.target_norm:
            hidden, _ = norm(hidden, residual)
        return hidden


class MoAForCausalLM(nn.Module):
    """The drafter as the speculator calls it."""

    has_own_embed_tokens = False
    has_own_lm_head = False

    weights_mapper = WeightsMapper(
        orig_to_new_stacked={
            f"{layer}_attention.{part}.{name}_proj": (f"{layer}_attention.{part}.{stacked}", shard)
            for layer in ("self", "cross")
            for part, name, stacked, shard in (
                ("self_attn", "q", "qkv_proj", "q"),
                ("self_attn", "k", "qkv_proj", "k"),
                ("self_attn", "v", "qkv_proj", "v"),
                ("mlp", "gate", "gate_up_proj", 0),
                ("mlp", "up", "gate_up_proj", 1),
            )
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.num_target_layers = vllm_config.model_config.get_num_layers(vllm_config.parallel_config)
        self.model = MoAModel(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), layer_id=self.num_target_layers
        )
        self.draft_head: DraftHead  # over the target's, set when both are loaded
        self.folder = vllm_config.speculative_config.draft_model_config.model

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """``[T, E]``"""
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Logits ``[T, S]`` of the ``S`` tokens that the drafter scores, from hidden states ``[T, E]`` and the head
        that the speculator sets."""
        return self.draft_head(hidden_states)

    def keys_values(self, input_ids: Tensor, positions: Tensor, kv: Tensor) -> tuple[KV, KV]:
        """The keys and values of verified tokens ``[T]``, of self- and of cross-attention: each ``[T, heads · size]``.

        ``kv`` ``[T, L, Hkv, 2, D]``: this rank's heads of the target's keys and values.
        """
        model = self.model
        _, *read = model.self_attention.project(positions, model.embed_tokens(input_ids))
        _, *verified = model.cross_attention.project(positions, self._memory(kv))
        return tuple(read), tuple(verified)  # type: ignore[return-value]

    def _memory(self, kv: Tensor) -> Tensor:
        """``[T, E]``"""
        layers = _all_heads(kv, self.model.Ekv2E.in_features // (2 * kv.shape[-1])).flatten(2)
        if not hasattr(self.model, "layer_self_attention"):
            return self.model.Ekv2E(layers.mean(dim=1))
        place = torch.arange(layers.shape[1], device=layers.device)[None]
        pooled, _ = self.model.layer_self_attention(layers, place, mask=None)
        return self.model.Ekv2E(pooled.mean(dim=1))

    def infer_target_layers(self, layers: Sequence[nn.Module], norm: nn.Module) -> None:
        """Run the target's last ``layers`` and its final norm over the drafter's feature."""
        self.model.target_layers, self.model.target_norm = tuple(layers), (norm,)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        # The mapper would find the names of stacked parameters inside those of the plain layer as well.
        tensors = dict(only_weights(finite(self.folder, weights)))
        plain = {name: tensors.pop(name) for name in list(tensors) if name.startswith("layer_self_attention.")}
        loader = AutoWeightsLoader(self.model)
        loaded = loader.load_weights(plain.items()) | loader.load_weights(tensors.items(), mapper=self.weights_mapper)
        return {f"model.{name}" for name in loaded}


def _all_heads(kv: Tensor, heads: int) -> Tensor:
    """``[T, L, heads, 2, D]`` from every rank's share; a rank may share its heads with others."""
    ranks = get_tensor_model_parallel_world_size()
    if ranks == 1:
        return kv
    gathered = tensor_model_parallel_all_gather(kv.contiguous(), dim=2)
    return gathered[:, :, :: gathered.shape[2] // heads]


def _shape(config: Any) -> MoAShape:
    values = dict(config.moa_shape)
    for name in ("self_attention", "cross_attention", "layer_self_attention"):
        values[name] = None if values[name] is None else LayerShape(**values[name])
    return MoAShape(**values | {"rope_scaling": None})  # vLLM's layers take it from the configuration
