"""DSpark's loss of a token's distribution, without keeping any logits: they are made of a few positions at a time, as
in ``head_loss.py``, with the Markov head's part.

``N`` positions, ``d`` hidden size, ``r`` rank of the Markov head, ``V`` tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vllm_specext.training.head_loss import CHUNK
from vllm_specext.training.logits import Logits


@dataclass(frozen=True)
class LossWeights:
    """Of both parts of a position's loss."""

    token: float
    """Cross-entropy against the target's distribution."""
    distance: float
    """The sum over all tokens of the difference of both probabilities."""


class Drafted(NamedTuple):
    """What a drafter's logits are made of."""

    features: Tensor
    """``[N, d]``"""
    before: Tensor
    """``[N, r]``: of the tokens before, by the Markov head's first table."""
    after: Tensor
    """``[V, r]``: the Markov head's second table."""

    def logits(self, head: Tensor, at: slice) -> Tensor:
        """``[n, V]`` float32, in the head's type as a server has it."""
        features, before, after = (x.to(head.dtype) for x in (self.features[at], self.before[at], self.after))
        return torch.addmm(before @ after.T, features, head.T).float()


class DSparkLosses(NamedTuple):
    """All but ``loss`` have no gradient."""

    loss: Tensor
    """A scalar: the weighted sum over all positions."""
    token: Tensor
    """``[N]``: cross-entropies, in nats."""
    accepted: Tensor
    """``[N]``: the shares of drawn tokens that the target would accept, 1 less half the distance."""


def dspark_losses(
    head: Tensor,
    drafted: Drafted,
    wanted: Tensor,
    weights: Tensor,
    parts: LossWeights,
    target: Logits,
    chunk: int = CHUNK,
) -> DSparkLosses:
    """Losses of what is ``drafted`` against the target's features ``wanted`` ``[N, d]``, of which the frozen ``head``
    ``[V, d]`` makes the ``target``'s logits. A position weighs as much as ``weights`` ``[N]`` says.

    Under autocast logits are made in its dtype; all that follows is float32.
    """
    if head.requires_grad:
        raise ValueError("the head is trained; expected one that is frozen")
    return DSparkLosses(*_Losses.apply(head, wanted, weights, parts, target, chunk, *drafted))


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        head: Tensor,
        wanted: Tensor,
        weights: Tensor,
        parts: LossWeights,
        target: Logits,
        chunk: int,
        *own: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        drafted, device = Drafted(*own), head.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else drafted.features.dtype
        with torch.autocast(device, enabled=False):
            head, after = head.to(dtype), drafted.after.to(dtype)
            gradients = Drafted(*map(torch.zeros_like, drafted))
            token, accepted = weights.new_empty(2, len(wanted), dtype=torch.float32)
            for at in _slices(len(wanted), chunk):
                teacher = target.of(wanted[at], head).softmax(dim=-1)
                logits = drafted._replace(after=after).logits(head, at)
                normaliser = logits.logsumexp(dim=-1)
                token[at] = normaliser - torch.einsum("nv,nv->n", teacher, logits)
                own_share = logits.sub_(normaliser[:, None]).exp_()
                gradient, distance = _differentiate(own_share, teacher, parts)
                accepted[at] = 1 - distance / 2
                gradient = gradient.mul_(weights[at, None]).to(dtype)
                gradients.features[at] = (gradient @ head).to(gradients.features.dtype)
                gradients.before[at] = (gradient @ after).to(gradients.before.dtype)
                gradients.after.add_(gradient.T @ drafted.before[at].to(dtype))
        ctx.gradients = gradients
        ctx.mark_non_differentiable(token, accepted)
        loss = (weights * (parts.token * token + parts.distance * 2 * (1 - accepted))).sum()
        return loss, token, accepted

    @staticmethod
    def backward(ctx: Any, loss: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        return (None,) * 6 + tuple(kept * loss.to(kept.dtype) for kept in ctx.gradients)


def _differentiate(own: Tensor, teacher: Tensor, parts: LossWeights) -> tuple[Tensor, Tensor]:
    """The gradient ``[n, V]`` of the logits, from the drafter's and the target's probabilities, which are overwritten;
    and the distance ``[n]`` of both."""
    more = teacher.neg_().add_(own)
    signs = more.sign()
    distance = torch.einsum("nv,nv->n", more, signs)
    mean = torch.einsum("nv,nv->n", own, signs)
    of_distance = signs.sub_(mean[:, None]).mul_(own)
    return more.mul_(parts.token).add_(of_distance, alpha=parts.distance), distance


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
