"""The parts that plain torch drafters share: normalisation, MLP, rotary positions and attention of the Llama family.

Shapes: ``B`` sequences, ``L`` inputs, ``d`` hidden size, ``H`` heads, ``Hkv`` key/value heads, ``D`` head size.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


class GatedMLP(nn.Module):
    """SwiGLU, as Llama has it."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, size, bias=False)
        self.up_proj = nn.Linear(width, size, bias=False)
        self.down_proj = nn.Linear(size, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]``"""
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


@dataclass(frozen=True)
class RopeScaling:
    """A longer context from the same rotary base: ``linear``, or Llama 3's, which leaves short wavelengths alone."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def as_config(self) -> dict[str, Any]:
        """Under the names that transformers has for it."""
        values = asdict(self)
        return {"rope_type": values.pop("kind"), **values}


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: the base, and how the frequencies are stretched, if they are."""

    theta: float
    scaling: RopeScaling | None = None
    share: float = 1.0
    """The part of every head that is turned, from its beginning."""

    def frequencies(self, half: int, device: torch.device) -> Tensor:
        """``[half]`` radians per position, in float32."""
        frequencies = self.theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        if self.scaling is None:
            return frequencies
        slow = frequencies / self.scaling.factor
        if self.scaling.kind == "linear":
            return slow
        low, high = self.scaling.low_freq_factor, self.scaling.high_freq_factor
        turns = self.scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
        # Fewer turns than ``low`` within the original context: stretched; more than ``high``: kept; between: a mixture.
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return kept * frequencies + (1 - kept) * slow


def rotate(x: Tensor, position_ids: Tensor, rotary: Rotary) -> Tensor:
    """Rotary embedding, first half of the head paired with the second ("NeoX"). ``x`` ``[B, H, L, D]``."""
    half = int(x.shape[-1] * rotary.share) // 2
    angles = position_ids[:, None, :, None].float() * rotary.frequencies(half, x.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second, rest = x.tensor_split((half, 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rotary: Rotary,
        qkv_bias: bool = False,
        out_width: int | None = None,
        qk_norm_eps: float | None = None,
    ) -> None:
        """The layer goes from ``width`` to ``out_width``, which is the same unless given. With ``qk_norm_eps``, queries
        and keys go through a norm of each head first, as in Qwen3."""
        super().__init__()
        self.head_dim, self.rotary = head_dim, rotary
        self.groups = heads // kv_heads
        self.q_proj = nn.Linear(width, heads * head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(heads * head_dim, out_width or width, bias=False)
        self.q_norm, self.k_norm = (
            nn.Identity() if qk_norm_eps is None else RMSNorm(head_dim, qk_norm_eps) for _ in range(2)
        )

    def queries(self, hidden: Tensor, position_ids: Tensor) -> Tensor:
        """``[B, H, L, D]``, with the rotary embedding of ``position_ids`` ``[B or 1, L]`` applied."""
        return rotate(self.q_norm(self._split(self.q_proj(hidden))), position_ids, self.rotary)

    def keys_values(self, hidden: Tensor, position_ids: Tensor) -> KV:
        """Of ``hidden`` ``[B, L, d]``, with the rotary embedding of ``position_ids`` ``[B or 1, L]`` in the keys."""
        keys = rotate(self.k_norm(self._split(self.k_proj(hidden))), position_ids, self.rotary)
        return keys, self._split(self.v_proj(hidden))

    def forward(self, hidden: Tensor, position_ids: Tensor, mask: Tensor, past: KV | None) -> tuple[Tensor, KV]:
        """``hidden`` ``[B, L, d]`` -> attention output ``[B, L, d]`` and the keys and values so far."""
        queries = self.queries(hidden, position_ids)
        kv = extend(past, self.keys_values(hidden, position_ids))
        return self.attend(queries, kv, mask), kv

    def attend(self, queries: Tensor, kv: KV, mask: Tensor | None) -> Tensor:
        """``queries`` ``[B, H, L, D]`` over ``kv`` -> attention output ``[B, L, d]``; no ``mask``: all see all.

        ``mask`` bool ``[B or 1, 1, L, keys]``, true where a query may attend to a key.
        """
        keys, values = kv
        scores = (queries @ self.repeat(keys).transpose(2, 3) / self.head_dim**0.5).float()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.merge(scores.softmax(dim=-1).to(values.dtype) @ self.repeat(values))

    def repeat(self, keys: Tensor) -> Tensor:
        """``[B, Hkv, ...]`` -> ``[B, H, ...]``: each key/value head serves a group of query heads."""
        return keys.repeat_interleave(self.groups, dim=1)

    def merge(self, heads: Tensor) -> Tensor:
        """``[B, H, L, D]`` -> output projection ``[B, L, d]``."""
        return self.o_proj(heads.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def extend(past: KV | None, new: KV) -> KV:
    """``new`` keys and values after those of ``past``."""
    return new if past is None else (torch.cat((past[0], new[0]), dim=2), torch.cat((past[1], new[1]), dim=2))
