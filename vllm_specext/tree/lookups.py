"""Whether tokens that were looked up in a text are worth more than a drafter's draft.

A common turn of phrase stands in a text again and again, and what followed it once says little; a passage that is
being repeated says nearly all. How far a place can be trusted depends on the tokens that speak for it: those by which
it was found, and those that it foretold since. For each of some numbers of these it is learned which share of the next
tokens come as they were looked up, whether they were drafted or not. Beside it stands how many tokens of the drafter's
own drafts are accepted at such places, where a text is easy for a drafter too. Drafters are trusted at first: what is
looked up can be judged while they draft, but not the other way round.
"""

from collections.abc import Sequence

KINDS = 7
"""Of evidence: up to 1 token, 2 and 3, 4 to 7, and so on."""
BELIEVED = 6.0
"""Tokens that the first guesses count as."""
FIRST_DRAFTS = 8.0
"""Accepted tokens of a drafter's draft, until some have been seen."""
KEPT = 0.998
"""Of what was learned, with every new thing that is."""


class Lookups:
    """What one engine has learned."""

    def __init__(self) -> None:
        self._came = [BELIEVED * _first_guess(kind) for kind in range(KINDS)]
        self._looked_up = [BELIEVED] * KINDS
        self._accepted = [FIRST_DRAFTS * BELIEVED] * KINDS
        self._drafts = [BELIEVED] * KINDS

    def pay(self, evidence: int, tokens: int) -> bool:
        """Whether so many looked-up ``tokens``, with so many that speak for them, are expected to bring more than a
        draft of the drafter."""
        kind = _kind(evidence)
        return self.expected(evidence, tokens) > self._accepted[kind] / self._drafts[kind]

    def expected(self, evidence: int, tokens: int) -> float:
        """How many of so many ``tokens`` come as they were looked up: the first of them in a row."""
        kind = _kind(evidence)
        share = self._came[kind] / self._looked_up[kind]
        return tokens if share == 1 else share * (1 - share**tokens) / (1 - share)

    def see(self, evidence: int, looked_up: Sequence[int], came: Sequence[int]) -> None:
        """Learn from the tokens that ``came`` next where others had been ``looked_up``."""
        kind, right = _kind(evidence), 0
        for one, other in zip(looked_up, came, strict=False):
            if one != other:
                self._count(kind, right, right + 1)
                return
            right += 1
        self._count(kind, right, right)

    def see_draft(self, evidence: int, accepted: int) -> None:
        """Learn from a drafter's draft, of which so many tokens were ``accepted``, at a place with this evidence."""
        kind = _kind(evidence)
        self._accepted[kind] = KEPT * self._accepted[kind] + accepted
        self._drafts[kind] = KEPT * self._drafts[kind] + 1

    def _count(self, kind: int, came: int, looked_up: int) -> None:
        self._came[kind] = KEPT * self._came[kind] + came
        self._looked_up[kind] = KEPT * self._looked_up[kind] + looked_up


def _kind(evidence: int) -> int:
    return min(max(evidence, 1).bit_length(), KINDS) - 1


def _first_guess(kind: int) -> float:
    """A share of one half after two tokens, of four fifths after eight."""
    least: int = 1 << kind
    return least / (least + 2)
