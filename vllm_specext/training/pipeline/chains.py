"""What a target would accept of a drafter's greedy chains, counted as a server counts: verification after
verification, each of which moves on by what was accepted and one token more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.training.acceptance import Acceptance
from vllm_specext.training.pipeline.method import Draft
from vllm_specext.training.rows import FeatureRow


@dataclass(frozen=True)
class Answered:
    """A text of which ``begin`` to ``end`` is the target's own greedy answer, or a part of it."""

    token_ids: Tensor
    """``[T]``, with at least a chain's tokens after ``end``, as the target goes on: what the last chains are compared
    with."""
    states: Tensor
    """``[T', width]``: what the drafter reads of the first of them, all before ``end`` at least."""
    begin: int
    end: int


def answers_in(row: FeatureRow, states: Tensor, chain: int) -> Iterator[Answered]:
    """The answers in ``row``, of which the drafter reads ``states`` ``[T, width]``, each up to where ``chain`` further
    tokens of it are known."""
    edges = torch.nn.functional.pad(row.loss_mask.bool().int(), (1, 1)).diff()
    starts, stops = (torch.nonzero(edges == sign).flatten().tolist() for sign in (1, -1))
    for begin, stop in zip(starts, stops, strict=True):
        if begin > 0 and stop - chain > begin:
            yield Answered(row.token_ids, states, begin, stop - chain)


@torch.no_grad()
def accepted_by_depth(draft: Draft, texts: Sequence[Answered], chain: int) -> tuple[int, Tensor]:
    """Verifications, and how many of them accepted the chain's first 1, 2, ... tokens, ``[chain]``."""
    verifications, depths = 0, torch.zeros(chain, dtype=torch.int64)
    for text in texts:
        for accepted in _walk(_accepted(draft, text, chain).tolist(), text):
            verifications += 1
            depths[:accepted] += 1
    return verifications, depths


def acceptance(verifications: int, depths: Tensor) -> Acceptance:
    shares = (depths.double() / max(1, verifications)).tolist()
    return Acceptance(1 + sum(shares), tuple(shares), verifications)


def _accepted(draft: Draft, text: Answered, chain: int) -> Tensor:
    """``[end - begin]``: of the chain that is drafted when each token of the answer is the last one known."""
    known = text.end  # the tokens up to the last after which something is drafted
    ids = text.token_ids[None, 1:known].long()
    drafts = draft(ids, text.states[None, : known - 1].float(), chain)[0].cpu()
    truth = text.token_ids.long()[2 : known + chain].unfold(0, chain, 1)
    hits = (drafts == truth[: len(drafts)]).cumprod(dim=-1).sum(dim=-1)
    return hits[text.begin - 1 :]


def _walk(accepted: Sequence[int], text: Answered) -> Iterator[int]:
    place = 0
    while place < text.end - text.begin:
        yield accepted[place]
        place += accepted[place] + 1
