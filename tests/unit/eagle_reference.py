"""EAGLE-1's drafter in plain torch, written from the published description for tests: no class of the package is used.

Feature of position ``s`` and embedding of token ``s + 1`` go through ``fc``, embedding first; a Llama layer without a
norm before attention follows, and the target's head reads its output as it is. The output is also the next feature.
Norms, angles and the softmax are computed in float32, as by the published code.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

Tensors = dict[str, Tensor]
EPS, THETA = 1e-5, 10000.0
VOCABULARY, D, HEADS, KV_HEADS, WIDTH, MLP = 23, 16, 4, 2, 4, 20


def random_eagle(fc_bias: bool, qkv_bias: bool = False, dtype: torch.dtype = torch.float64) -> Tensors:
    """A checkpoint's tensors, by the names of SafeAILab's and HASS's code."""
    q, kv = HEADS * WIDTH, KV_HEADS * WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCABULARY, D),
        "fc.weight": (D, 2 * D),
        "layers.0.self_attn.q_proj.weight": (q, D),
        "layers.0.self_attn.k_proj.weight": (kv, D),
        "layers.0.self_attn.v_proj.weight": (kv, D),
        "layers.0.self_attn.o_proj.weight": (D, q),
        "layers.0.post_attention_layernorm.weight": (D,),
        "layers.0.mlp.gate_proj.weight": (MLP, D),
        "layers.0.mlp.up_proj.weight": (MLP, D),
        "layers.0.mlp.down_proj.weight": (D, MLP),
    }
    shapes |= {"fc.bias": (D,)} if fc_bias else {}
    shapes |= {f"layers.0.self_attn.{x}_proj.bias": (q if x == "q" else kv,) for x in "qkv"} if qkv_bias else {}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) / 3 for name, shape in shapes.items()}


def eagle_pass(tensors: Tensors, tokens: Tensor, features: Tensor) -> Tensor:
    """The outputs ``[L, d]`` for all of ``tokens`` ``[L]`` and ``features`` ``[L, d]``, without any cache."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    hidden = linear("fc", torch.cat((tensors["embed_tokens.weight"][tokens], features), dim=-1))
    attention = "layers.0.self_attn"
    query, key, value = (linear(f"{attention}.{x}_proj", hidden).unflatten(-1, (-1, WIDTH)) for x in "qkv")
    query, key = rotated(query), rotated(key)
    groups = HEADS // KV_HEADS
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = (torch.einsum("qhd,khd->hqk", query, key) / WIDTH**0.5).float()
    scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), float("-inf"))
    attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1).to(value.dtype), value).flatten(1)
    hidden = hidden + linear(f"{attention}.o_proj", attended)
    normed = hidden.float() * torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + EPS)
    normed = normed.to(hidden.dtype) * tensors["layers.0.post_attention_layernorm.weight"]
    gated = F.silu(linear("layers.0.mlp.gate_proj", normed)) * linear("layers.0.mlp.up_proj", normed)
    return hidden + linear("layers.0.mlp.down_proj", gated)


def rotated(x: Tensor) -> Tensor:
    """``[L, heads, width]`` turned by its positions, the first half of a head against the second."""
    rates = THETA ** (-torch.arange(0, WIDTH, 2).float() / WIDTH)
    angles = torch.arange(len(x)).float()[:, None] * rates
    cos, sin = (part.to(x.dtype).repeat(1, 2)[:, None] for part in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def eagle_chain(
    tensors: Tensors, head: Tensor, tokens: Tensor, features: Tensor, depth: int
) -> list[tuple[Tensor, Tensor]]:
    """The output and the logits, ``[d]`` and ``[V]``, of each of ``depth`` drafted tokens after a prefix."""
    found = []
    for _ in range(depth):
        output = eagle_pass(tensors, tokens, features)[-1]
        logits = F.linear(output, head)
        found.append((output, logits))
        tokens = torch.cat((tokens, logits.argmax()[None]))
        features = torch.cat((features, output[None]))
    return found
