"""MoA's drafter in plain torch: used by training, and the reference that the serving model is tested against.

Layer self-attention (LSA) looks at one verified token at a time, at its keys and values in all of the target's layers,
and makes one *memory* vector of them. Self-attention (SA) reads the token embeddings, drafted tokens included.
Cross-attention (CA) reads the memory of the verified tokens. The query at position ``i`` imitates the target's hidden
state at position ``i``: what enters the target's ``lm_head``, or with target-layer inference its last layers.

The order of the numbers in a token's keys and values of one layer is that of a cache which keeps them side by side:
``[k_0 | v_0 | k_1 | v_1 | ...]`` over the key/value heads, keys with their rotary positions.

Shapes: ``B`` sequences, ``T`` tokens, ``S`` verified tokens, ``L`` layers of the target, ``E`` its hidden size, ``W``
the keys and values of one token in one layer (``2 · Hkv · D``).
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vllm_specext.methods.layers import KV, Attention, GatedMLP, RMSNorm, Rotary
from vllm_specext.methods.moa.checkpoint import LayerShape, MoAShape


class DecoderLayer(nn.Module):
    """A Llama layer, whose keys and values may come from another stream."""

    def __init__(self, shape: LayerShape, rms_norm_eps: float, rotary: Rotary) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.width, rms_norm_eps)
        self.self_attn = Attention(
            shape.width,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            rotary,
            qkv_bias=shape.qkv_bias,
            qk_norm_eps=rms_norm_eps if shape.qk_norm else None,
        )
        self.post_attention_layernorm = RMSNorm(shape.width, rms_norm_eps)
        self.mlp = GatedMLP(shape.width, shape.mlp_size)

    def forward(
        self, hidden: Tensor, position_ids: Tensor, mask: Tensor | None, past: KV | None = None
    ) -> tuple[Tensor, KV]:
        """Self-attention over ``past`` and ``hidden`` ``[B, T, width]``; also the keys and values so far."""
        attended, kv = self.self_attn(self.input_layernorm(hidden), position_ids, mask, past)
        return self.finish(hidden + attended), kv

    def keys_values(self, stream: Tensor, position_ids: Tensor) -> KV:
        """Keys and values of another stream ``[B, S, width]``, after the norm that queries go through too."""
        return self.self_attn.keys_values(self.input_layernorm(stream), position_ids)

    def cross(self, hidden: Tensor, position_ids: Tensor, kv: KV, mask: Tensor | None) -> Tensor:
        """``hidden`` ``[B, T, width]`` attends to ``kv`` alone."""
        queries = self.self_attn.queries(self.input_layernorm(hidden), position_ids)
        return self.finish(hidden + self.self_attn.attend(queries, kv, mask))

    def finish(self, residual: Tensor) -> Tensor:
        return residual + self.mlp(self.post_attention_layernorm(residual))


class MoADrafter(nn.Module):
    """The trained modules. Embedding, head, and with target-layer inference the last layers, are the target's."""

    def __init__(self, shape: MoAShape) -> None:
        super().__init__()
        self.shape = shape
        plain = Rotary(shape.rope_theta)
        eps = shape.rms_norm_eps
        self.self_attention = DecoderLayer(shape.self_attention, eps, Rotary(shape.rope_theta, shape.rope_scaling))
        self.cross_attention = DecoderLayer(shape.cross_attention, eps, plain)
        if shape.layer_self_attention is not None:
            self.layer_self_attention = DecoderLayer(shape.layer_self_attention, eps, plain)
        self.Ekv2E = nn.Linear(shape.kv_width, shape.hidden_size)
        self.lsa_chunk: int | None = None
        """Where gradients are wanted, LSA sees so many tokens at a time and is made again in the backward pass: its
        activations are those of ``L`` rows for every token."""

    def memory(self, kv: Tensor) -> Tensor:
        """``[B, S, L, W]`` -> ``[B, S, E]``. Without LSA: the mean of the keys and values themselves."""
        if self.shape.layer_self_attention is None:
            pooled = kv.mean(dim=2)
        elif self.lsa_chunk is not None and torch.is_grad_enabled():
            parts = kv.flatten(0, 1).split(self.lsa_chunk)
            made = [checkpoint(self._pool_layers, part[None], use_reentrant=False)[0] for part in parts]
            pooled = torch.cat(made).unflatten(0, kv.shape[:2])
        else:
            pooled = self._pool_layers(kv)
        return self.Ekv2E(pooled)

    def absorb(self, kv: Tensor, position_ids: Tensor) -> KV:
        """The memory of verified tokens that CA reads: keys and values ``[B, Hkv, S, D]`` of ``kv`` ``[B, S, L, W]`` at
        ``position_ids`` ``[B or 1, S]``. Each token's depend on that token alone."""
        return self.cross_attention.keys_values(self.memory(kv), position_ids)

    def read(
        self, embeddings: Tensor, position_ids: Tensor, mask: Tensor | None, past: KV | None = None
    ) -> tuple[Tensor, KV]:
        """SA: embeddings of tokens after ``past`` ``[B, T, E]`` -> queries for CA ``[B, T, E]``, and SA's cache.

        ``mask`` bool ``[B or 1, 1, T, past + T]``, true where a token may attend to another.
        """
        hidden, kv = self.self_attention(embeddings, position_ids, mask, past)
        return hidden, kv

    def predict(self, hidden: Tensor, position_ids: Tensor, verified: KV, mask: Tensor | None = None) -> Tensor:
        """CA: queries ``[B, T, E]`` over what `absorb` made of the verified tokens -> features ``[B, T, E]``.

        When drafting, all verified tokens are visible: no ``mask`` ``[B or 1, 1, T, S]``.
        """
        return self.cross_attention.cross(hidden, position_ids, verified, mask)

    def forward(self, embeddings: Tensor, kv: Tensor, sa_mask: Tensor, ca_mask: Tensor) -> Tensor:
        """Whole sequences at positions 0..T-1: ``[B, T, E]`` and ``[B, T, L, W]`` -> features ``[B, T, E]``.

        Row ``i`` of ``ca_mask`` ``[B, 1, T, T]`` is true for the tokens that count as verified for query ``i``.
        """
        position_ids = torch.arange(embeddings.shape[1], device=embeddings.device)[None]
        hidden, _ = self.read(embeddings, position_ids, sa_mask)
        return self.predict(hidden, position_ids, self.absorb(kv, position_ids), ca_mask)

    def _pool_layers(self, kv: Tensor) -> Tensor:
        """LSA: positions are the layers' numbers, every token a sequence of its own; the mean over the layers."""
        layers = torch.arange(kv.shape[2], device=kv.device)[None]
        hidden, _ = self.layer_self_attention(kv.flatten(0, 1), layers, mask=None)
        return hidden.mean(dim=1).unflatten(0, kv.shape[:2])
