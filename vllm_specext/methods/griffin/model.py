"""GRIFFIN's drafter in plain torch: used by training, and the reference that the serving model is tested against.

Input ``s`` of a sequence pairs the feature of position ``s`` (the target's last hidden state after the final norm, or
this drafter's own regress feature) with the embedding of token ``s + 1``, and has position id ``s``. Output ``s`` is
two features of position ``s + 1``: the predict feature, of which the target's ``lm_head`` makes the logits of token
``s + 2``, and the regress feature, the next step's input. Module names are those of the released checkpoints.

Shapes: ``B`` sequences, ``L`` inputs, ``d`` hidden size, ``H`` heads, ``Hkv`` key/value heads, ``D`` head size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vllm_specext.methods.griffin.checkpoint import GriffinShape

KV = tuple[Tensor, Tensor]
"""Keys and values after the rotary embedding, each ``[B, Hkv, L, D]``."""


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Any shape ``[..., size]``; statistics in float32."""
        x32 = x.float()
        return self.weight * (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


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


class Attention(nn.Module):
    def __init__(self, shape: GriffinShape) -> None:
        super().__init__()
        d, q, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.head_dim, self.rope_theta = shape.head_dim, shape.rope_theta
        self.groups = shape.heads // shape.kv_heads
        self.q_proj = nn.Linear(d, q, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(d, kv, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(d, kv, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(q, d, bias=False)

    def queries(self, hidden: Tensor, position_ids: Tensor) -> Tensor:
        """``[B, H, L, D]``, with the rotary embedding of ``position_ids`` ``[B or 1, L]`` applied."""
        return rotate(self._split(self.q_proj(hidden)), position_ids, self.rope_theta)

    def keys_values(self, hidden: Tensor, position_ids: Tensor) -> KV:
        keys = rotate(self._split(self.k_proj(hidden)), position_ids, self.rope_theta)
        return keys, self._split(self.v_proj(hidden))

    def forward(self, hidden: Tensor, position_ids: Tensor, mask: Tensor, past: KV | None) -> tuple[Tensor, KV]:
        """``hidden`` ``[B, L, d]`` -> attention output ``[B, L, d]`` and the keys and values so far."""
        queries = self.queries(hidden, position_ids)
        keys, values = self.keys_values(hidden, position_ids)
        if past is not None:
            keys, values = torch.cat((past[0], keys), dim=2), torch.cat((past[1], values), dim=2)
        scores = queries @ self.repeat(keys).transpose(2, 3) / self.head_dim**0.5
        weights = scores.float().masked_fill(~mask, float("-inf")).softmax(dim=-1).to(values.dtype)
        return self.merge(weights @ self.repeat(values)), (keys, values)

    def repeat(self, keys: Tensor) -> Tensor:
        """``[B, Hkv, ...]`` -> ``[B, H, ...]``: each key/value head serves a group of query heads."""
        return keys.repeat_interleave(self.groups, dim=1)

    def merge(self, heads: Tensor) -> Tensor:
        """``[B, H, L, D]`` -> output projection ``[B, L, d]``."""
        return self.o_proj(heads.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


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
        self.self_attn = Attention(shape)
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


def rotate(x: Tensor, position_ids: Tensor, theta: float) -> Tensor:
    """Rotary embedding, first half of the head paired with the second ("NeoX"). ``x`` ``[B, H, L, D]``."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = position_ids[:, None, :, None].float() * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
