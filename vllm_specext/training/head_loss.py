"""Losses that need logits, without keeping any: the head is applied to a few positions at a time.

Of every chunk of positions the target's and the drafter's logits are made, the losses' sums and the gradient of the
drafter's features are taken from them, and they are dropped. So no ``[B, L, V]`` tensor lives, and the backward pass
makes no logits again. The target's logits of a chunk serve all passes. What is computed is defined by
``tests/unit/griffin_losses.py``, which makes all logits at once.

A drafter with an output layer of its own learns the target's distribution of the tokens that it scores, at the
positions where the target's likeliest token is one of them, as EAGLE-3's code has it. The gradient of this layer is
summed up here, too.

``B`` packs of ``L`` positions, ``d`` hidden size, ``V`` tokens, ``V'`` tokens that the drafter scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vllm_specext.training.logits import PLAINLY_SCORED, Scored
from vllm_specext.training.own_head import OwnHead

CHUNK = 1024
"""Positions whose logits live at the same time."""

DISTILLED_TOKENS = 10
"""The target's most probable tokens that the top-k loss looks at (HASS)."""

MaskShift = Literal["code", "paper"]
"""The hits that a token's loss in pass ``n`` requires: those of the ``n - 1`` tokens that end with the token itself, as
in the code that trained GRIFFIN's released checkpoints, or with the one before it, as the paper's corrected equation
says."""


@dataclass(frozen=True)
class Alignment:
    """GRIFFIN's mask of later passes: a position counts if the text's last tokens were all hits, among the ``top_k``
    best of the drafter in the passes before."""

    next_ids: Tensor
    """``[B, L]``: the text's token that an output predicts."""
    positions: Tensor
    """``[B, L]``: places in the row of text. No mask looks back across a row's beginning, which has position 0."""
    top_k: int = 3
    shift: MaskShift = "code"


@dataclass(frozen=True)
class HeadLosses:
    """One number for each pass, over the positions that count in it. All but ``loss`` have no gradient."""

    loss: Tensor
    """``[passes]``: the sum of both losses, weighted."""
    token: Tensor
    """``[passes]``: sum of the cross-entropy against the target's distribution."""
    top_k: Tensor
    """``[passes]``: sum of the part of it that falls on the target's best tokens."""
    masks: Tensor
    """``[passes, B, L]`` bool: the positions that count."""


@dataclass(frozen=True)
class HeadWeights:
    """Of both losses in a pass's loss."""

    token: float = 1.0
    top_k: float = 0.0


def head_losses(
    head: Tensor,
    features: Sequence[Tensor],
    wanted: Tensor,
    counted: Tensor,
    weights: HeadWeights,
    alignment: Alignment | None = None,
    scored: Scored = PLAINLY_SCORED,
    chunk: int = CHUNK,
    own: OwnHead | None = None,
) -> HeadLosses:
    """Losses of every pass's ``features`` ``[B, L, d]`` against the target's ``wanted`` ``[B, L, d]``, which is the
    input of the same, frozen ``head`` ``[V, d]``, unless the drafter has its ``own``. ``counted`` ``[B, L]`` is true
    where the first pass learns.

    Under autocast logits are made in its dtype; all that follows is float32. Without ``alignment`` they are made of the
    positions that are counted alone.
    """
    if head.requires_grad:
        raise ValueError("the head is trained; expected one that is frozen")
    if alignment is None:
        nothing = torch.zeros_like(counted, dtype=torch.int64)
        alignment = Alignment(nothing, nothing, top_k=0)
    how = weights, alignment, scored, chunk
    weight, tokens = (None, None) if own is None else own
    loss, token, top_k, masks = _HeadLosses.apply(head, wanted, counted, how, weight, tokens, *features)
    return HeadLosses(loss, token, top_k, masks)


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        head: Tensor,
        wanted: Tensor,
        counted: Tensor,
        how: tuple[HeadWeights, Alignment, Scored, int],
        own: Tensor | None,
        tokens: Tensor | None,
        *features: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weights, alignment, scored, chunk = how
        device = head.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features[0].dtype
        # Alignment asks what the drafter says before the positions that count. Without it the others need no logits,
        # which is worth that the host waits for the number of those that do.
        at: Any = slice(None) if alignment.top_k else counted.flatten().nonzero()[:, 0]
        with torch.autocast(device, enabled=False):
            drafts = None if own is None or tokens is None else OwnHead(own.detach().to(dtype), tokens)
            flattened = [x.flatten(0, 1)[at] for x in features]
            walk = _Walk(head.to(dtype), weights, alignment, scored, counted.flatten()[at], flattened, drafts)
            flat = wanted.flatten(0, 1)[at]
            for start in range(0, len(flat), chunk):
                walk.take(slice(start, min(start + chunk, len(flat))), flat)
        ctx.gradients, ctx.of_own = walk.gradients, walk.of_own
        ctx.at, ctx.shape = at, wanted.shape
        sums = walk.sums.unbind()
        masks = counted.new_zeros(len(features), counted.numel(), dtype=torch.bool)
        masks[:, at] = walk.masks
        masks = masks.unflatten(1, counted.shape)
        loss = weights.token * sums[0] + weights.top_k * sums[1]
        ctx.mark_non_differentiable(*sums, masks)
        return loss, *sums, masks

    @staticmethod
    def backward(ctx: Any, loss: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        gradients = []
        for kept, scale in zip(ctx.gradients, loss, strict=True):
            scaled = (kept * scale).to(kept.dtype)
            if not isinstance(ctx.at, slice):
                counted = scaled
                scaled = kept.new_zeros(ctx.shape).flatten(0, 1)
                scaled[ctx.at] = counted
            gradients.append(scaled.view(ctx.shape))
        of_own = None if ctx.of_own is None else torch.einsum("n,nvd->vd", loss, ctx.of_own)
        return None, None, None, None, of_own, None, *gradients


class _Walk:
    """From chunk to chunk, in the order of positions: a position's mask needs hits of positions before it alone.
    Positions are those of a batch, one row of it after the other, all or some: ``counted`` and features have one each.
    """

    def __init__(
        self,
        head: Tensor,
        weights: HeadWeights,
        alignment: Alignment,
        scored: Scored,
        counted: Tensor,
        features: list[Tensor],
        own: OwnHead | None,
    ) -> None:
        self.head, self.weights, self.alignment, self.scored, self.features = head, weights, alignment, scored, features
        self.drafting = head if own is None else own.weight
        """What makes the drafter's logits."""
        self.tokens: Tensor | None = None
        """The target's token of each of them, and of each of the target's tokens, whether it is one; where not all
        are."""
        self.is_scored = torch.zeros(len(head), dtype=torch.bool, device=head.device)
        self.of_own: Tensor | None = None
        """The gradient of the drafter's own head in each pass, ``[passes, V', d]``."""
        if own is not None:
            self.of_own = torch.zeros(len(features), *own.weight.shape, device=head.device)
            if len(own.tokens) < len(head):
                self.tokens = own.tokens
                self.is_scored[own.tokens] = True
        self.counted = counted.bool().clone()
        self.next_ids = alignment.next_ids.flatten()
        self.begins = alignment.positions.flatten() == 0
        passes = len(features)
        self.masks = self.counted.new_zeros(passes, len(self.counted))
        self.runs = self.counted.new_zeros(passes, len(self.counted))
        """Of every pass: whether this position and those before it were hits of this pass and of those before it."""
        self.sums = torch.zeros(2, passes, device=head.device)
        self.gradients = [torch.empty_like(x) for x in features]

    def take(self, at: slice, wanted: Tensor) -> None:
        teacher = self._teach(at, wanted)
        best, best_ids = teacher.topk(min(DISTILLED_TOKENS, teacher.shape[-1]), dim=-1)
        for n, features in enumerate(self.features):
            logits = self.scored.drafter.of(features[at], self.drafting)
            self._mark(n, at, logits)
            mask = self.masks[n, at].float()
            normaliser = logits.logsumexp(dim=-1)
            token = normaliser - torch.einsum("nv,nv->n", teacher, logits)
            on_best = (best * (normaliser[:, None] - logits.gather(-1, best_ids))).sum(dim=-1)
            self.sums[0, n] += (mask * token).sum()
            self.sums[1, n] += (mask * on_best).sum()
            self._differentiate(n, at, logits, normaliser, mask, teacher, best, best_ids)

    def _teach(self, at: slice, wanted: Tensor) -> Tensor:
        """The target's probabilities of the tokens that the drafter scores."""
        logits = self.scored.target.of(wanted[at], self.head)
        if self.tokens is not None:
            self.counted[at] &= self.is_scored[logits.argmax(dim=-1)]
            logits = logits[:, self.tokens]
        return logits.softmax(dim=-1)

    def _mark(self, n: int, at: slice, logits: Tensor) -> None:
        """The positions of the chunk that count in this pass, and the runs of hits that end at them."""
        before = self._before(n, at)
        if n == 0 or not self.alignment.top_k:
            needed: Tensor | bool = True
        else:
            needed = before if self.alignment.shift == "paper" else self.runs[n - 1, at]
        self.masks[n, at] = self.counted[at] & needed
        if self.alignment.top_k:
            top = logits.topk(min(self.alignment.top_k, logits.shape[-1]), dim=-1).indices
            top = top if self.tokens is None else self.tokens[top]
            self.runs[n, at] = before & (top == self.next_ids[at, None]).any(dim=-1)

    def _before(self, n: int, at: slice) -> Tensor:
        """The last pass's runs that end one position before; true where there is no such pass or position."""
        if n == 0:
            return torch.ones_like(self.begins[at])
        runs = self.runs[n - 1]
        shifted = runs[at.start - 1 : at.stop - 1] if at.start else torch.cat((runs[:1], runs[: at.stop - 1]))
        return shifted | self.begins[at]

    def _differentiate(
        self,
        n: int,
        at: slice,
        logits: Tensor,
        normaliser: Tensor,
        mask: Tensor,
        teacher: Tensor,
        best: Tensor,
        best_ids: Tensor,
    ) -> None:
        """``logits`` are overwritten with the loss's gradient by the products of head and features."""
        weights, slope = self.weights, self.scored.drafter.slope(logits)
        gradient = logits.sub_(normaliser[:, None]).exp_()
        gradient *= weights.token + weights.top_k * best.sum(dim=-1, keepdim=True)
        gradient.add_(teacher, alpha=-weights.token)
        if weights.top_k:
            gradient.scatter_add_(-1, best_ids, best * -weights.top_k)
        if isinstance(slope, Tensor):
            gradient *= slope
            slope = 1.0
        gradient *= (mask * slope)[:, None]
        rounded = gradient.to(self.drafting.dtype)
        self.gradients[n][at] = (rounded @ self.drafting).to(self.gradients[n].dtype)
        if self.of_own is not None:
            self.of_own[n] += rounded.T @ self.features[n][at].to(rounded.dtype)
