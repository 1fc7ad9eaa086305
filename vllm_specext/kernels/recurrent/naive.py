"""Recurrent layers in torch, over draft trees and along accepted paths, whatever their rule is. Computed in float32."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.kernels.recurrent.layer import RecurrentLayer
from vllm_specext.kernels.recurrent.rows import BlockEnds, KeptRows, TreeRows
from vllm_specext.tree.topology import unpack

Rule = Callable[[Any, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""``rule(layer, rows, gates, states, sees, inside)``: what ``rows`` ``[R, N, C]`` after the convolution, with ``gates``
``[R, N, gates * H]``, get from ``states`` ``[R, H, ...]`` before them, ``[R, N, H, V]``; and the states after all rows,
as if they were one path. ``sees`` ``[R, N, N]``: a row's ancestors and the row itself, none of which comes after it;
rows that are not ``inside`` ``[R, N]`` change no state."""


def attend(
    rule: Rule,
    mixed: Tensor,
    gates: Sequence[Tensor],
    layer: RecurrentLayer,
    rows: TreeRows,
    slots: Tensor,
    kept: KeptRows,
    place: int,
    out: Tensor,
) -> None:
    if rows.num_rows == 0:
        return
    own = torch.cat([gate[: rows.num_rows] for gate in gates], dim=1)
    kept.mixed[place, : rows.num_rows], kept.gates[place, : rows.num_rows] = mixed[: rows.num_rows], own
    nodes = rows.visible.shape[1]
    index, inside = _padded(rows.starts, nodes, rows.num_rows)
    taps = _windows(mixed[index], layer.conv_states[slots], rows.before.long())
    sees = unpack(rows.visible, nodes) & inside[:, None, :] & inside[:, :, None]
    results, _ = rule(layer, _convolved(taps, layer), own[index], layer.states[slots].float(), sees, inside)
    out[: rows.num_rows] = results[inside].to(out.dtype)


def advance(
    rule: Rule,
    layers: Sequence[RecurrentLayer],
    kept: KeptRows,
    slots: Sequence[Tensor],
    path: Tensor,
    counts: Tensor,
    ends: BlockEnds | None = None,
) -> None:
    for place, (layer, own) in enumerate(zip(layers, slots, strict=True)):
        inputs = kept.mixed[place], kept.gates[place], layer
        if ends is not None:
            passed = ((ends.rows <= counts) & (ends.slots[place] != own)).nonzero()[:, 0]
            here, there = own[passed].long(), ends.slots[place][passed].long()
            layer.states[there], layer.conv_states[there] = layer.states[here], layer.conv_states[here]
            follow(rule, *inputs, there, path[passed], ends.rows[passed])
        follow(rule, *inputs, own, path, counts)


def follow(
    rule: Rule, mixed: Tensor, gates: Tensor, layer: RecurrentLayer, slots: Tensor, path: Tensor, counts: Tensor
) -> Tensor:
    """Have the states of one layer go on, and return what the rows of the paths get, ``[R, L, H, V]``, of which the
    first ``counts`` count. ``mixed`` ``[T, C]`` and ``gates`` ``[T, gates * H]``; the others as for ``advance``."""
    slots = slots.long()
    places = torch.arange(path.shape[1], device=path.device)
    inside = places < counts[:, None]
    own, before = mixed[path], layer.conv_states[slots]
    back = places[:, None] - 1 - torch.arange(layer.taps - 1, device=path.device)
    rows = _convolved(_windows(own, before, back.expand(len(path), -1, -1)), layer)
    sees = (places[:, None] >= places).expand(len(path), -1, -1)
    results, states = rule(layer, rows, gates[path], layer.states[slots].float(), sees, inside)
    layer.states[slots] = states.to(layer.states.dtype)
    # The last inputs of all that came before and of the rows that count.
    inputs = torch.cat((before, own.transpose(1, 2).to(before.dtype)), dim=2)
    last = counts[:, None].long() + torch.arange(layer.taps - 1, device=path.device)
    layer.conv_states[slots] = inputs.gather(2, last[:, None].expand(-1, inputs.shape[1], -1))
    return results


def decays(decay: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """How much of what a row left is there at each other that sees it, ``[R, H, N, N]``, and of the state before the
    first row, ``[R, H, N, 1]``. ``decay`` ``[R, H, N]``: logarithms of what a row leaves of the state."""
    sees = sees[:, None]
    total = (sees.float() @ decay[..., None])[..., 0]
    # What is not seen may have decayed less, so that its exponent is unbounded.
    kept = (total[..., None] - total[..., None, :]).masked_fill(~sees, float("-inf")).exp()
    return kept, total.exp()[..., None]


def _padded(starts: Tensor, nodes: int, count: int) -> tuple[Tensor, Tensor]:
    """Rows ``[R, nodes]`` of each request, and which of them are its own."""
    rows = starts[:-1, None] + torch.arange(nodes, device=starts.device)
    return rows.clamp(max=count - 1).long(), rows < starts[1:, None]


def _windows(own: Tensor, before: Tensor, back: Tensor) -> Tensor:
    """What each row's convolution reads, ``[R, N, W, C]``, the oldest first: of the rows ``own`` ``[R, N, C]``, and of
    ``before`` ``[R, C, W - 1]``, where ``back`` ``[R, N, W - 1]``, nearest first, is negative."""
    width = before.shape[2]
    inputs = torch.cat((before.transpose(1, 2).to(own.dtype), own), dim=1)
    index = torch.cat((back.flip(2), torch.arange(own.shape[1], device=own.device).expand(len(own), -1)[..., None]), 2)
    request = torch.arange(len(own), device=own.device)[:, None, None]
    return inputs[request, index + width]


def _convolved(taps: Tensor, layer: RecurrentLayer) -> Tensor:
    """``[R, N, C]`` in the model's data type, as vLLM's convolution leaves it."""
    total = (taps.float() * layer.conv_weight.float().T).sum(dim=2)
    if layer.conv_bias is not None:
        total += layer.conv_bias.float()
    return F.silu(total).to(taps.dtype)
