"""GRIFFIN's drafter of vLLM layers: tensor-parallel linears, paged keys and values, the target's embedding and
``lm_head``.

The arithmetic is that of ``model.py``, which is the specification; a test holds the two together. Shapes: ``T`` rows of
a step, ``d`` hidden size.
"""

from collections.abc import Iterable
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.models.llama import LlamaAttention
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    WeightsMapper,
    get_draft_quant_config,
    maybe_prefix,
)

from vllm_specext.engine.drafting.draft_head import DraftHead
from vllm_specext.kernels.token_guided_fusion import (
    FusionWeights,
    fused_up_to_rows,
    token_guided_fusion,
    token_guided_fusion_of_rank,
)
from vllm_specext.methods.checkpoints import finite, only_weights
from vllm_specext.methods.griffin.from_eagle import as_griffin


class FusionMLP(nn.Module):
    def __init__(self, config: PretrainedConfig, quant_config: QuantizationConfig | None, prefix: str) -> None:
        super().__init__()
        d = config.hidden_size
        self.input_layernorm = RMSNorm(d, eps=config.rms_norm_eps)
        self.up_proj = ColumnParallelLinear(
            2 * d, config.tgf_size, bias=False, quant_config=quant_config, prefix=f"{prefix}.up_proj"
        )
        self.down_proj = RowParallelLinear(
            config.tgf_size, d, bias=False, quant_config=quant_config, prefix=f"{prefix}.down_proj"
        )

    def forward(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        both = torch.cat((self.input_layernorm(hidden), self.input_layernorm(embeddings)), dim=-1)
        expanded, _ = self.up_proj(both)
        return self.down_proj(F.silu(expanded))[0]


class TokenGuidedFusion(nn.Module):
    def __init__(self, config: PretrainedConfig, quant_config: QuantizationConfig | None, prefix: str) -> None:
        super().__init__()
        d = config.hidden_size
        # Its whole output goes through a norm, so splitting it over ranks would cost a gather for a small matrix.
        self.fc = ReplicatedLinear(2 * d, d, bias=True, quant_config=quant_config, prefix=f"{prefix}.fc")
        self.post_attention_layernorm = RMSNorm(d, eps=config.rms_norm_eps)
        self.mlp = FusionMLP(config, quant_config, f"{prefix}.mlp")
        self.has_kernels = fused_up_to_rows(self.post_attention_layernorm.weight.device, torch.get_default_dtype()) > 0

    def forward(self, features: Tensor, token_ids: Tensor, embed_tokens: nn.Module) -> Tensor:
        if not self._fuses():
            embeddings = embed_tokens(token_ids)
            hidden, _ = self.fc(torch.cat((embeddings, features), dim=-1))
            return hidden + self.mlp(self.post_attention_layernorm(hidden), embeddings)
        weights = FusionWeights(
            fc=self.fc.weight,
            fc_bias=self.fc.bias,
            post_norm=self.post_attention_layernorm.weight,
            input_norm=self.mlp.input_layernorm.weight,
            up=self.mlp.up_proj.weight,
            down=self.mlp.down_proj.weight,
        )
        eps = self.post_attention_layernorm.variance_epsilon
        if self.mlp.down_proj.tp_size > 1:
            hidden, share = token_guided_fusion_of_rank(features, embed_tokens(token_ids), weights, eps)
            return hidden + tensor_model_parallel_all_reduce(share)
        if _is_table(embed_tokens, features.dtype):
            return token_guided_fusion(features, embed_tokens.weight, weights, eps, token_ids)
        return token_guided_fusion(features, embed_tokens(token_ids), weights, eps)

    def _fuses(self) -> bool:
        """Quantised linears and those of adapters compute more than a product with ``weight``."""
        linears = (
            (self.fc, ReplicatedLinear),
            (self.mlp.up_proj, ColumnParallelLinear),
            (self.mlp.down_proj, RowParallelLinear),
        )
        return self.has_kernels and all(
            type(linear) is stock and type(linear.quant_method) is UnquantizedLinearMethod for linear, stock in linears
        )


def _is_table(embed_tokens: nn.Module, dtype: torch.dtype) -> TypeGuard[VocabParallelEmbedding]:
    """Whether a row of ``weight`` is all there is to an embedding. It may be the target's module, with an adapter."""
    if (
        type(embed_tokens) is not VocabParallelEmbedding
        or type(embed_tokens.quant_method) is not UnquantizedEmbeddingMethod
    ):
        return False
    return bool(embed_tokens.tp_size == 1) and embed_tokens.weight.dtype == dtype


class TwoHeadedMLP(nn.Module):
    def __init__(self, config: PretrainedConfig, quant_config: QuantizationConfig | None, prefix: str) -> None:
        super().__init__()
        d, width = config.hidden_size, config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            d, [width] * 2, bias=False, quant_config=quant_config, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(
            width, 2 * d, bias=False, quant_config=quant_config, prefix=f"{prefix}.down_proj"
        )
        self.act_fn = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        """``[T, d]`` -> ``[T, 2 d]``: predict half, then regress half."""
        gate_up, _ = self.gate_up_proj(x)
        return self.down_proj(self.act_fn(gate_up))[0]


class GriffinLayer(nn.Module):
    def __init__(
        self,
        vllm_config: VllmConfig,
        config: PretrainedConfig,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(
            config=config,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            bias=config.qkv_bias,
            cache_config=vllm_config.cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.self_attn",
        )
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = TwoHeadedMLP(config, quant_config, f"{prefix}.mlp")

    def forward(self, positions: Tensor, hidden: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predict and regress feature, each ``[T, d]``; with ``rows`` of these alone, and zeros elsewhere. Of the other
        rows the keys and values are read later, which are there before the MLP, the larger half of the layer."""
        residual = hidden + self.self_attn(positions=positions, hidden_states=hidden)
        if rows is None:
            return self.finish(residual)
        predict, regress = (torch.zeros_like(residual).index_copy_(0, rows, own) for own in self.finish(residual[rows]))
        return predict, regress

    def finish(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The part after attention."""
        predict, regress = self.mlp(self.post_attention_layernorm(residual)).chunk(2, dim=-1)
        return residual + predict, residual + regress


@support_torch_compile
class GriffinModel(nn.Module):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", layer_id: int = 0) -> None:
        super().__init__()
        assert vllm_config.speculative_config is not None
        config = vllm_config.speculative_config.draft_model_config.hf_config
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "embed_tokens")
        )
        quant_config = get_draft_quant_config(vllm_config)
        self.fc = TokenGuidedFusion(config, quant_config, maybe_prefix(prefix, "fc"))
        # vLLM tells attention layers apart by the number in their name, so ours follows the target's.
        self.layers = nn.ModuleList(
            [GriffinLayer(vllm_config, config, quant_config, maybe_prefix(prefix, f"layers.{layer_id}"))]
        )
        self.rows: Tensor | None = None
        """The rows of a pass whose features are asked for, where not all are."""

    def forward(self, input_ids: Tensor, positions: Tensor, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.fc(hidden_states, input_ids, self.embed_tokens)
        return self.layers[0](positions, hidden, self.rows)


class GriffinForCausalLM(nn.Module):
    """The drafter as vLLM's speculator calls it."""

    # The file holds a copy of the target's embedding: vLLM compares the two and keeps one when they are equal.
    has_own_embed_tokens = True
    has_own_lm_head = False

    weights_mapper = WeightsMapper(
        orig_to_new_stacked={
            "self_attn.q_proj": ("self_attn.qkv_proj", "q"),
            "self_attn.k_proj": ("self_attn.qkv_proj", "k"),
            "self_attn.v_proj": ("self_attn.qkv_proj", "v"),
            "layers.0.mlp.gate_proj": ("layers.0.mlp.gate_up_proj", 0),
            "layers.0.mlp.up_proj": ("layers.0.mlp.gate_up_proj", 1),
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        layer_id = vllm_config.model_config.get_num_layers(vllm_config.parallel_config)
        self.model = GriffinModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), layer_id=layer_id)
        self.draft_head: DraftHead  # over the target's, set when both are loaded
        drafter = vllm_config.speculative_config.draft_model_config
        self.folder, self.hidden_size = drafter.model, drafter.hf_config.hidden_size

    def ask_for(self, rows: Tensor | None) -> None:
        """Have the next passes give the features of these ``rows`` ``[R]`` int64 alone; of all, where it is ``None``.
        A compiled pass always gives all: its code is one for both."""
        self.model.rows = rows if self.model.do_not_compile else None

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def forward(
        self, input_ids: Tensor, positions: Tensor, hidden_states: Tensor, inputs_embeds: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predict and regress feature, each ``[T, d]``; vLLM makes logits of the first and feeds back the second."""
        return self.model(input_ids, positions, hidden_states)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Logits ``[T, S]`` of the ``S`` tokens that the drafter scores, from predict features ``[T, d]`` and the head
        that the speculator sets."""
        return self.draft_head(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        ours = as_griffin(only_weights(finite(self.folder, weights)), self.hidden_size)
        loaded = AutoWeightsLoader(self.model).load_weights(ours, mapper=self.weights_mapper)
        return {f"model.{name}" for name in loaded}
