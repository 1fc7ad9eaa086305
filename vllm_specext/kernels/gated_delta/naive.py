"""The gated delta rule in torch, over draft trees and along accepted paths.

Along a path, a head's state is ``S_i = e^{g_i} S_{i-1} + k_i u_i^T`` with ``u_i = beta_i (v_i - e^{g_i} S_{i-1}^T
k_i)``, and row ``i`` gets ``S_i^T q_i``. No state of a node is needed for this: ``S_{i-1}`` is the state before the
root, which decayed, and the ``u_j`` of the ancestors. That makes one triangular system for all nodes of a tree, in
which the mask of ancestors stands where a chain has the lower triangle. Computed in float32.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.kernels.gated_delta.layer import BlockEnds, GatedDeltaLayer, GatedDeltaRows, KeptRows
from vllm_specext.tree.topology import unpack

EPSILON = 1e-6
"""Added to squared lengths of queries and keys, as vLLM's kernels do."""


def attend(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    layer: GatedDeltaLayer,
    rows: GatedDeltaRows,
    slots: Tensor,
    kept: KeptRows,
    place: int,
    out: Tensor,
) -> None:
    if rows.num_rows == 0:
        return
    gates = torch.cat((a[: rows.num_rows], b[: rows.num_rows]), dim=1)
    kept.mixed[place, : rows.num_rows], kept.gates[place, : rows.num_rows] = mixed[: rows.num_rows], gates
    nodes = rows.visible.shape[1]
    index, inside = _padded(rows.starts, nodes, rows.num_rows)
    taps = _windows(mixed[index], layer.conv_states[slots], rows.before.long())
    query, key, value = layer.heads(_convolved(taps, layer))
    sees = unpack(rows.visible, nodes) & inside[:, None, :] & inside[:, :, None]
    results = chunk(query, key, value, *gating(gates[index], layer), layer.states[slots].float(), sees)[0]
    out[: rows.num_rows] = results[inside].to(out.dtype)


def advance(
    layers: Sequence[GatedDeltaLayer],
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
            follow(*inputs, there, path[passed], ends.rows[passed])
        follow(*inputs, own, path, counts)


def follow(mixed: Tensor, gates: Tensor, layer: GatedDeltaLayer, slots: Tensor, path: Tensor, counts: Tensor) -> Tensor:
    """Have the states of one layer go on, and return what the rows of the paths get, ``[R, L, Hv, V]``, of which the
    first ``counts`` count. ``mixed`` ``[T, C]`` and ``gates`` ``[T, 2 Hv]``; the others as for ``advance``."""
    slots = slots.long()
    places = torch.arange(path.shape[1], device=path.device)
    inside = (places < counts[:, None])[:, :, None]
    own, before = mixed[path], layer.conv_states[slots]
    back = places[:, None] - 1 - torch.arange(layer.taps - 1, device=path.device)
    query, key, value = layer.heads(_convolved(_windows(own, before, back.expand(len(path), -1, -1)), layer))
    # Rows that do not count change no state.
    decay, beta = (each.where(inside, 0) for each in gating(gates[path], layer))
    sees = (places[:, None] >= places).expand(len(path), -1, -1)
    results, states = chunk(query, key, value, decay, beta, layer.states[slots].float(), sees)
    layer.states[slots] = states.to(layer.states.dtype)
    # The last inputs of all that came before and of the rows that count.
    inputs = torch.cat((before, own.transpose(1, 2).to(before.dtype)), dim=2)
    last = counts[:, None].long() + torch.arange(layer.taps - 1, device=path.device)
    layer.conv_states[slots] = inputs.gather(2, last[:, None].expand(-1, inputs.shape[1], -1))
    return results


def gating(gates: Tensor, layer: GatedDeltaLayer) -> tuple[Tensor, Tensor]:
    """Logarithms of the decay and the betas, both ``[..., Hv]``, of ``gates`` ``[..., 2 Hv]``."""
    a, b = gates.float().chunk(2, dim=-1)
    return -layer.decay.float().exp() * F.softplus(a + layer.step_bias.float()), b.sigmoid()


def chunk(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor, sees: Tensor
) -> tuple[Tensor, Tensor]:
    """Results ``[R, N, Hv, V]``, and the states after all rows as if they were one path, ``[R, Hv, K, V]``.

    ``query`` and ``key`` ``[R, N, Hk, K]``, ``value`` ``[R, N, Hv, V]``, ``decay`` and ``beta`` ``[R, N, Hv]``,
    ``state`` ``[R, Hv, K, V]`` before the first row, ``sees`` ``[R, N, N]``: a row's ancestors and the row itself,
    none of which comes after it.
    """
    group = value.shape[2] // key.shape[2]
    query, key = (_unit(each).repeat_interleave(group, dim=2).transpose(1, 2) for each in (query, key))
    value, decay, beta = value.float().transpose(1, 2), decay.transpose(1, 2), beta.transpose(1, 2)[..., None]
    sees = sees[:, None]
    total = (sees.float() @ decay[..., None])[..., 0]
    # What is not seen may have decayed less, so that its exponent is unbounded.
    kept = (total[..., None] - total[..., None, :]).masked_fill(~sees, float("-inf")).exp()
    since = total.exp()[..., None]
    products = key @ key.transpose(2, 3) * kept * beta
    system = products.tril(-1) + torch.eye(key.shape[2], device=key.device)
    updates = torch.linalg.solve_triangular(
        system, beta * (value - since * (key @ state)), upper=False, unitriangular=True
    )
    query = query * query.shape[3] ** -0.5
    results = since * (query @ state) + (query @ key.transpose(2, 3) * kept) @ updates
    after = since[:, :, -1:] * state + (key * kept[:, :, -1, :, None]).transpose(2, 3) @ updates
    return results.transpose(1, 2), after


def _unit(vectors: Tensor) -> Tensor:
    vectors = vectors.float()
    return vectors * (vectors.square().sum(dim=-1, keepdim=True) + EPSILON).rsqrt()


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


def _convolved(taps: Tensor, layer: GatedDeltaLayer) -> Tensor:
    """``[R, N, C]`` in the model's data type, as vLLM's convolution leaves it."""
    return F.silu((taps.float() * layer.conv_weight.float().T).sum(dim=2)).to(taps.dtype)
