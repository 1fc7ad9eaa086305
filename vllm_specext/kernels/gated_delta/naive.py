"""The gated delta rule in torch, for `kernels.recurrent.naive`.

Along a path, a head's state is ``S_i = e^{g_i} S_{i-1} + k_i u_i^T`` with ``u_i = beta_i (v_i - e^{g_i} S_{i-1}^T
k_i)``, and row ``i`` gets ``S_i^T q_i``. No state of a node is needed for this: ``S_{i-1}`` is the state before the
root, which decayed, and the ``u_j`` of the ancestors. That makes one triangular system for all nodes of a tree, in
which the mask of ancestors stands where a chain has the lower triangle.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.kernels.gated_delta.layer import GatedDeltaLayer
from vllm_specext.kernels.recurrent.naive import decays

EPSILON = 1e-6
"""Added to squared lengths of queries and keys, as vLLM's kernels do."""


def rule(
    layer: GatedDeltaLayer, rows: Tensor, gates: Tensor, states: Tensor, sees: Tensor, inside: Tensor
) -> tuple[Tensor, Tensor]:
    """A ``Rule`` of `kernels.recurrent.naive`."""
    query, key, value = layer.split(rows)
    decay, beta = (each.where(inside[..., None], 0).transpose(1, 2) for each in _gating(gates, layer))
    group = value.shape[2] // key.shape[2]
    query, key = (_unit(each).repeat_interleave(group, dim=2).transpose(1, 2) for each in (query, key))
    value, beta = value.float().transpose(1, 2), beta[..., None]
    kept, since = decays(decay, sees)
    products = key @ key.transpose(2, 3) * kept * beta
    system = products.tril(-1) + torch.eye(key.shape[2], device=key.device)
    updates = torch.linalg.solve_triangular(
        system, beta * (value - since * (key @ states)), upper=False, unitriangular=True
    )
    query = query * query.shape[3] ** -0.5
    results = since * (query @ states) + (query @ key.transpose(2, 3) * kept) @ updates
    after = since[:, :, -1:] * states + (key * kept[:, :, -1, :, None]).transpose(2, 3) @ updates
    return results.transpose(1, 2), after


def _gating(gates: Tensor, layer: GatedDeltaLayer) -> tuple[Tensor, Tensor]:
    """Logarithms of the decay and the betas, both ``[..., Hv]``, of ``gates`` ``[..., 2 Hv]``."""
    a, b = gates.float().chunk(2, dim=-1)
    return -layer.decay.float().exp() * F.softplus(a + layer.step_bias.float()), b.sigmoid()


def _unit(vectors: Tensor) -> Tensor:
    vectors = vectors.float()
    return vectors * (vectors.square().sum(dim=-1, keepdim=True) + EPSILON).rsqrt()
