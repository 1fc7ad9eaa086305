"""GRIFFIN's drafter in plain torch: used by training, and the reference that the serving model is tested against.

Input ``s`` of a sequence pairs the feature of position ``s`` (the target's last hidden state after the final norm, or
this drafter's own regress feature) with the embedding of token ``s + 1``, and has position id ``s``. Output ``s`` is
two features of position ``s + 1``: the predict feature, of which the target's ``lm_head`` makes the logits of token
``s + 2``, and the regress feature, the next step's input. Module names are those of the released checkpoints.

Shapes: ``B`` sequences, ``L`` inputs, ``d`` hidden size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vllm_specext.methods.griffin.checkpoint import GriffinShape
from vllm_specext.methods.layers import KV, Attention, RMSNorm, Rotary


class FusionMLP(nn.Module):
    def __init__(self, shape: GriffinShape) -> None:
        super().__init__()
        d = shape.hidden_size
        self.input_layernorm = RMSNorm(d, shape.rms_norm_eps)
        self.up_proj = nn.Linear(2 * d, shape.tgf_size, bias=False)
        self.down_proj = nn.Linear(shape.tgf_size, d, bias=False)

    def forward(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        both = torch.cat((self.input_layernorm(hidden), self.input_layernorm(embeddings)), dim=-1)
        return self.down_proj(F.silu(self.up_proj(both)))


class TokenGuidedFusion(nn.Module):
    """Merges features and token embeddings, the embeddings twice."""

    def __init__(self, shape: GriffinShape) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = FusionMLP(shape)

    def forward(self, features: Tensor, embeddings: Tensor) -> Tensor:
        hidden = self.fc(torch.cat((embeddings, features), dim=-1))
        # The released weights expect the hidden state to be normalised here and once more inside the MLP.
        return hidden + self.mlp(self.post_attention_layernorm(hidden), embeddings)


class TwoHeadedMLP(nn.Module):
    def __init__(self, shape: GriffinShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.mlp_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.mlp_size, bias=False)
        self.down_proj = nn.Linear(shape.mlp_size, 2 * shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Additions to the residual for the predict and for the regress feature, each ``[B, L, d]``."""
        predict, regress = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)).chunk(2, dim=-1)
        return predict, regress


class DecoderLayer(nn.Module):
    """A Llama layer without a norm before attention."""

    def __init__(self, shape: GriffinShape) -> None:
        super().__init__()
        self.self_attn = Attention(
            shape.hidden_size,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            Rotary(shape.rope_theta),
            shape.qkv_bias,
        )
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = TwoHeadedMLP(shape)

    def forward(self, hidden: Tensor, position_ids: Tensor, mask: Tensor, past: KV | None) -> tuple[Tensor, Tensor, KV]:
        attended, kv = self.self_attn(hidden, position_ids, mask, past)
        return *self.finish(hidden + attended), kv

    def finish(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The part after attention: predict and regress feature, each ``[B, L, d]``."""
        predict, regress = self.mlp(self.post_attention_layernorm(residual))
        return residual + predict, residual + regress


class GriffinDrafter(nn.Module):
    def __init__(self, shape: GriffinShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.fc = TokenGuidedFusion(shape)
        self.layers = nn.ModuleList([DecoderLayer(shape)])

    @property
    def layer(self) -> DecoderLayer:
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer

    def embed(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """``[B, L]`` -> ``[B, L, d]``, in the dtype of the features they go with."""
        return self.embed_tokens(token_ids).to(dtype)

    def fuse(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Token-guided fusion of two ``[B, L, d]`` into the layer's input ``[B, L, d]``."""
        return self.fc(features, embeddings)

    def forward(
        self, token_ids: Tensor, features: Tensor, position_ids: Tensor, mask: Tensor, past: KV | None = None
    ) -> tuple[Tensor, Tensor, KV]:
        """One pass over ``L`` inputs after ``past``.

        ``token_ids`` ``[B, L]``, ``features`` ``[B, L, d]``, ``position_ids`` ``[B or 1, L]``, ``mask`` bool
        ``[B or 1, 1, L, L past + L]``, true where a query (row) may attend to a key (column). Returns the predict and
        the regress feature, each ``[B, L, d]``, and the keys and values of ``past`` and of this pass.
        """
        hidden = self.fuse(features, self.embed(token_ids, features.dtype))
        return self.layer(hidden, position_ids, mask, past)
