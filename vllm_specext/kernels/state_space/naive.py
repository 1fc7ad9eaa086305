"""The state space rule of Mamba-2 in torch, for `kernels.recurrent.naive`.

Along a path, a head's state is ``S_i = e^{d_i a} S_{i-1} + d_i x_i b_i^T``, and row ``i`` gets ``S_i c_i`` and its
values ``x_i`` times the head's ``skip``; ``d_i`` is the row's step, ``a`` the head's rate. So what a row gets is the
decayed state before the root times ``c_i``, and of each ancestor ``j`` its values times ``d_j b_j^T c_i``, decayed: the
paper's dual form, in which the mask of ancestors stands where a chain has the lower triangle.
"""

from torch import Tensor
from torch.nn import functional as F

from vllm_specext.kernels.recurrent.naive import decays
from vllm_specext.kernels.state_space.layer import StateSpaceLayer


def rule(
    layer: StateSpaceLayer, rows: Tensor, gates: Tensor, states: Tensor, sees: Tensor, inside: Tensor
) -> tuple[Tensor, Tensor]:
    """A ``Rule`` of `kernels.recurrent.naive`."""
    values, inward, outward = (each.float().transpose(1, 2) for each in layer.split(rows))
    group = layer.heads // layer.groups
    inward, outward = (each.repeat_interleave(group, dim=1) for each in (inward, outward))
    step = F.softplus(gates.float() + layer.step_bias.float()).where(inside[..., None], 0).transpose(1, 2)
    kept, since = decays(step * layer.decay.float()[:, None], sees)
    moved = values * step[..., None]
    results = since * (outward @ states.transpose(2, 3)) + (outward @ inward.transpose(2, 3) * kept) @ moved
    results += values * layer.skip.float()[:, None, None]
    after = since[:, :, -1:] * states + (moved * kept[:, :, -1, :, None]).transpose(2, 3) @ inward
    return results.transpose(1, 2), after
