"""SLRS's proposal (Timor et al., arXiv 2502.05202, Algorithm 3): the distribution of the target token that a drafter
with other tokens writes.

The drafter writes until its text, the string, is no proper prefix of a target token, or until it ends it; the proposal
is the longest target token that the string begins with. Let ``reach(t)`` be the probability that the drafter writes the
bytes of ``t``. The probability that ``t`` is proposed is ``reach(t)`` less the reach of the tokens that are the next
longer ones than ``t``.

``reach`` adds up over all spellings of a string in the drafter's tokens. The spellings grow as a tree, all of a level
in one forward pass of the drafter. Where a spelling is not followed, its probability stays with the longest token found
so far. The distribution is then that of a drafter that stops writing there. The proposal is drawn from it, so
verification is exact with any width and depth.

Probabilities are added as integers, in units of 2**-60: sums of integers do not depend on the order in which a device
adds, hence all ranks of a tensor-parallel group find the same distribution to the last bit.
Shapes: ``R`` requests, ``W`` spellings followed, ``D`` and ``T`` the vocabularies.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_specext.methods.foreign_vocab.distributions.trie import LONGEST, Trie

ONE = 2.0**60


class SpellingFrontier(NamedTuple):
    """The spellings that the next level grows from, each ``[R, W]``, best first."""

    parents: Tensor
    """Places in the previous frontier of the spellings that these continue."""
    tokens: Tensor
    """The drafter's tokens that these add."""
    log_pi: Tensor
    """Log-probabilities of the whole spellings; -inf for padding."""


class StringDistribution:
    """Begin, grow once per level with what the drafter says at the frontier, then ask for the probabilities."""

    def __init__(
        self,
        target: Sequence[bytes | None],
        drafter: Sequence[bytes | None],
        *,
        target_ends: Iterable[int],
        drafter_ends: Iterable[int],
        width: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Bytes of both vocabularies by id, ``None`` for markers; the ids that end a text; the most spellings ``W``."""
        self.size, self.width = len(target), width
        ends, drafter_ends = sorted(target_ends), sorted(drafter_ends)
        strings = {t: text for t, text in _strings(target, ends).items() if len(text) <= LONGEST}
        trie = Trie.of((text, t) for t, text in strings.items())
        # What a token of the drafter holds beyond that is outside the trie in any case.
        written = Trie.of((text[:LONGEST], d) for d, text in _strings(drafter, drafter_ends).items())

        # Column T stands for "no token".
        column = torch.where(trie.token < 0, self.size, trie.token).long()
        shorter = torch.full((self.size + 1,), self.size)
        shorter[column[:-1]] = torch.where(trie.nearest() < 0, self.size, trie.nearest()).long()
        fallback = torch.zeros(self.size)
        fallback[min(strings, key=lambda t: (len(strings[t]), t))] = 1

        self.trie, self.written = trie.to(device), written.to(device)
        self.column, self.shorter, self.goes_on = column.to(device), shorter[:-1].to(device), self.trie.goes_on()
        self.fallback = fallback.to(device)
        self.target_end = ends[0] if ends else self.size
        self.drafter_ends = torch.tensor(drafter_ends, dtype=torch.int64, device=device)

    def begin(self, requests: int) -> None:
        """A new proposal for each request. The frontier is the text so far: ``[R, 1]``."""
        device = self.column.device
        self.reach = torch.zeros(requests, self.size + 1, dtype=torch.int64, device=device)
        self.nodes = torch.zeros(requests, 1, dtype=torch.int64, device=device)
        self.log_pi = torch.zeros(requests, 1, device=device)
        self.at_root = True

    def grow(self, log_probs: Tensor) -> SpellingFrontier:
        """Read what the drafter says at each spelling of the frontier, ``[R, W, D]`` (``W`` is 1 at the first level);
        returns the next frontier."""
        # A drafter that yields NaN drafts badly; its proposal is a distribution all the same.
        log_probs = log_probs.nan_to_num(nan=-torch.inf, neginf=-torch.inf).clamp(max=0)
        scores = self.log_pi[..., None] + log_probs
        if self.at_root:
            end = _units(scores[:, 0, self.drafter_ends]).sum(dim=1)
            self.reach[:, self.target_end] += end
            self.at_root = False
        scores = scores[..., self.written.ids]
        nodes = self._walk()

        # Tokens that share their beginning stand side by side.
        sums = pad(_units(scores).cumsum(dim=2), (1, 0))
        first, last = self.written.spans[:, 1:]
        passing = sums[..., last] - sums[..., first]
        self.reach.scatter_add_(1, self.column[nodes[..., 1:]].flatten(1), passing.flatten(1))

        ended = nodes[..., self.written.ends].flatten(1)
        scores = scores.flatten(1).masked_fill(~self.goes_on[ended], -torch.inf)
        missing = max(self.width - scores.shape[1], 0)
        log_pi, chosen = pad(scores, (0, missing), value=-torch.inf).topk(self.width)
        chosen = chosen.clamp(max=scores.shape[1] - 1)
        self.log_pi, self.nodes = log_pi, ended.gather(1, chosen)
        words = len(self.written.ids)
        return SpellingFrontier(parents=chosen // words, tokens=self.written.ids[chosen % words], log_pi=log_pi)

    def probabilities(self) -> Tensor:
        """The distribution of the next token, ``[R, T]``: certain to be the shortest where the drafter reached none."""
        reach = self.reach[:, :-1]
        longer = torch.zeros_like(self.reach).scatter_add_(1, self.shorter.expand_as(reach), reach)
        gained = (reach - longer[:, :-1]).clamp(min=0)
        total = gained.sum(dim=1, keepdim=True)
        return torch.where(total > 0, gained.double() / total, self.fallback).to(self.log_pi.dtype)

    def _walk(self) -> Tensor:
        """``[R, W, nodes of the drafter's trie]``: the node of the target's trie that a spelling leads to, followed by
        each string that can begin the drafter's next token."""
        nodes = self.nodes.new_empty(*self.nodes.shape, self.written.outside)
        nodes[..., 0] = self.nodes
        for level in self.written.levels:
            edges = self.written.edges[level.start - 1 : level.stop - 1]
            nodes[..., level] = self.trie.step(nodes[..., edges >> 8], edges & 255)
        return nodes


def _units(log_probs: Tensor) -> Tensor:
    return (log_probs.exp() * ONE).long()


def _strings(vocabulary: Sequence[bytes | None], ends: Iterable[int]) -> dict[int, bytes]:
    """The bytes of the ordinary tokens, by id."""
    excluded = set(ends)
    return {token: text for token, text in enumerate(vocabulary) if text and token not in excluded}
