"""MoA's greedy chains, drafted at all positions of a text at once, without a server."""

import torch
from torch import Tensor

from vllm_specext.methods.layers import KV
from vllm_specext.methods.moa.model import DecoderLayer, MoADrafter
from vllm_specext.methods.moa.target_layers import TargetLayers
from vllm_specext.training.chains import most_likely
from vllm_specext.training.moa.target import TargetStates
from vllm_specext.training.own_keys import attend


@torch.no_grad()
def simulate_moa_chains(
    model: MoADrafter,
    embedding: Tensor,
    head: Tensor,
    last_layers: TargetLayers | None,
    rows: TargetStates,
    length: int,
) -> Tensor:
    """The greedy chain of ``length`` tokens drafted after each token but the first: ``[B, T - 1, length]``.

    Entry ``s`` is drafted when token ``s + 1`` is the last one known and tokens ``0..s`` are verified. ``embedding``
    and ``head`` ``[V, E]`` are the target's.
    """
    position_ids = torch.arange(rows.kv.shape[1], device=head.device)[None]
    roots = position_ids[:, 1:]
    known, verified = position_ids <= roots.T, position_ids < roots.T
    memory = model.absorb(rows.kv, position_ids)
    layers = [] if last_layers is None else [layer for layer in last_layers.layers if isinstance(layer, DecoderLayer)]
    tokens: KV = model.self_attention.keys_values(rows.embeddings, position_ids)
    own_tokens: list[KV] = []
    own_features: list[list[KV]] = [[] for _ in layers]
    embeddings = rows.embeddings[:, 1:]
    drafts = []
    for step in range(length):
        at = roots + step
        if step:
            own_tokens.append(model.self_attention.keys_values(embeddings, at))
        hidden = _layer(model.self_attention, embeddings, at, tokens, known, own_tokens)
        hidden = _layer(model.cross_attention, hidden, at, memory, verified, [])
        for layer, shared, own in zip(layers, rows.last_kvs, own_features, strict=True):
            own.append(layer.keys_values(hidden, at))
            hidden = _layer(layer, hidden, at, shared, verified, own)
        if last_layers is not None:
            hidden = last_layers.norm(hidden)
        token_ids = most_likely(hidden, head)
        drafts.append(token_ids)
        embeddings = embedding[token_ids].float()
    return torch.stack(drafts, dim=-1)


def _layer(layer: DecoderLayer, hidden: Tensor, at: Tensor, shared: KV, mask: Tensor, own: list[KV]) -> Tensor:
    queries = layer.self_attn.queries(layer.input_layernorm(hidden), at)
    return layer.finish(hidden + attend(layer.self_attn, queries, shared, mask, own))
