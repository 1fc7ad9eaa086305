"""MoA over whole sequences, in which every query sees what `blocks` says: ranges of keys, a few queries at a time.

`MoADrafter.forward` and `TargetLayers` with masks give the same, with all scores at once
(``tests/unit/moa_masks.py``). ``B`` rows of ``T`` positions, ``E`` the target's hidden size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_specext.methods.layers import KV
from vllm_specext.methods.moa.model import DecoderLayer, MoADrafter
from vllm_specext.methods.moa.target_layers import TargetLayers
from vllm_specext.training.packed_attention import Layout, Span, attend


def drafted_features(model: MoADrafter, embeddings: Tensor, kv: Tensor, last: Tensor, block_only: Tensor) -> Tensor:
    """Features ``[B, T, E]`` of ``embeddings`` ``[B, T, E]`` and the target's ``kv`` ``[B, T, L, W]``.

    ``last`` ``[B, T]`` is every query's last boundary; in rows where ``block_only`` ``[B]`` is true SA sees the block
    alone.
    """
    layout = _rows(last)
    at = layout.slots
    slots = at.expand_as(last)
    begin = torch.where(block_only[:, None], torch.minimum(last + 1, slots), 0)
    tokens = model.self_attention.keys_values(embeddings, at)
    hidden = _layer(model.self_attention, embeddings, [Span(tokens, begin, slots)], layout)
    memory = model.absorb(kv, at)
    return _layer(model.cross_attention, hidden, [Span(memory, torch.zeros_like(last), last)], layout)


def through_target_layers(layers: TargetLayers, features: Tensor, known: Sequence[KV], last: Tensor) -> Tensor:
    """The input of ``lm_head`` ``[B, T, E]`` that the target's last ``layers`` make of ``features``. They see the
    target's own keys and values, ``known``, up to the last boundary, and those that they make of features after it."""
    layout = _rows(last)
    slots = layout.slots.expand_as(last)
    for layer, verified in zip(layers.layers, known, strict=True):
        assert isinstance(layer, DecoderLayer)
        made = layer.keys_values(features, layout.slots)
        spans = [Span(verified, torch.zeros_like(last), last), Span(made, last + 1, slots)]
        features = _layer(layer, features, spans, layout)
    normed: Tensor = layers.norm(features)
    return normed


def _rows(last: Tensor) -> Layout:
    """Each row is a pack."""
    packs, length = last.shape
    return Layout(torch.arange(length, device=last.device).expand(packs, -1), ((0,),) * packs)


def _layer(layer: DecoderLayer, hidden: Tensor, spans: list[Span], layout: Layout) -> Tensor:
    queries = layer.self_attn.queries(layer.input_layernorm(hidden), layout.slots)
    return layer.finish(hidden + attend(layer.self_attn, queries, spans, [], layout))
