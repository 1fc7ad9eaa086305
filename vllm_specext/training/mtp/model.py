"""A target's multi-token prediction module in plain torch: a decoder layer with a projection before it.

Input ``s`` of a sequence pairs a hidden state of position ``s``, the target's last one or this module's own from the
step before, with the embedding of token ``s + 1``; of output ``s`` the target's head makes the logits of token
``s + 2``. Embedding and head are the target's, and not in the module.

Shapes: ``B`` sequences, ``L`` inputs, ``d`` hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vllm_specext.methods.layers import KV, Attention, GatedMLP, RMSNorm, Rotary
from vllm_specext.training.mtp.experts import Experts
from vllm_specext.training.mtp.layouts import Layout


@dataclass(frozen=True)
class ModuleShape:
    """All that is needed to build a module. Its widths are those of the target's layers."""

    layout: Layout
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    """Of a layer with ``experts`` it is not read."""
    rms_norm_eps: float
    rotary: Rotary
    experts: Experts | None
    config: Mapping[str, Any] = field(compare=False, repr=False)
    """The target's ``config.json``, which a module's folder has, too."""


class ModuleAttention(Attention):
    """Attention with the norm before it, and without the projection after it."""

    def __init__(self, shape: ModuleShape) -> None:
        d, eps, layout = shape.hidden_size, shape.rms_norm_eps, shape.layout
        super().__init__(
            d,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.rotary,
            qkv_bias=layout.qkv_bias,
            qk_norm_eps=eps if layout.gated else None,
        )
        self.input_norm = RMSNorm(d, eps)
        self.gate_proj = nn.Linear(d, shape.heads * shape.head_dim, bias=False) if layout.gated else None

    def queries(self, hidden: Tensor, position_ids: Tensor) -> Tensor:
        return super().queries(self.input_norm(hidden), position_ids)

    def keys_values(self, hidden: Tensor, position_ids: Tensor) -> KV:
        return super().keys_values(self.input_norm(hidden), position_ids)

    def merge(self, heads: Tensor) -> Tensor:
        """``[B, H, L, D]`` -> ``[B, L, H D]``."""
        return heads.transpose(1, 2).flatten(2)

    def project(self, hidden: Tensor, heads: Tensor) -> Tensor:
        """The layer's attention output ``[B, L, d]``, of what it read, ``[B, L, d]``, and of ``merge``'s ``heads``."""
        if self.gate_proj is not None:
            heads = heads * self.gate_proj(self.input_norm(hidden)).sigmoid()
        projected: Tensor = self.o_proj(heads)
        return projected


class MtpModule(nn.Module):
    def __init__(self, shape: ModuleShape) -> None:
        super().__init__()
        d, eps = shape.hidden_size, shape.rms_norm_eps
        self.shape = shape
        self.embedding_norm = RMSNorm(d, eps)
        self.hidden_norm = RMSNorm(d, eps)
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.self_attn = ModuleAttention(shape)
        self.mlp_norm = RMSNorm(d, eps)
        self.mlp = GatedMLP(d, shape.mlp_size) if shape.experts is None else shape.experts.mlp()
        self.norm = RMSNorm(d, eps)

    def fuse(self, hidden: Tensor, embeddings: Tensor, position_ids: Tensor) -> Tensor:
        """What the layer reads, ``[B, L, d]``, of both, ``[B, L, d]``, at places ``[B or 1, L]`` of the text."""
        layout = self.shape.layout
        if not layout.sees_first_token:
            embeddings = torch.where(position_ids[..., None] == 0, 0, embeddings)
        parts = (self.embedding_norm(embeddings), self.hidden_norm(hidden))
        fused: Tensor = self.fc(torch.cat(parts[::-1] if layout.hidden_first else parts, dim=-1))
        return fused

    def finish(self, fused: Tensor, heads: Tensor) -> Tensor:
        """The head's input ``[B, L, d]``, of what the layer read and of the ``heads`` of its attention. It is what the
        next step reads, too."""
        hidden = fused + self.self_attn.project(fused, heads)
        finished: Tensor = self.norm(hidden + self.mlp(self.mlp_norm(hidden)))
        return finished
