"""The place in given tokens against a slow reference, over any texts and however they are cut; wrong places are
noticed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_specext.tree.place import Place

TOKENS = st.lists(st.integers(0, 3), max_size=40)
"""Few tokens, so that the same ones stand together in many places."""
MATCH = st.integers(1, 4)


class Reference:
    """The same place, looked for token by token over all of the text and all of the given tokens."""

    def __init__(self, tokens: list[int], match: int) -> None:
        self.tokens, self.match = tokens, match
        self.text: list[int] = []
        self.place: int | None = 0
        self.start = 0
        self.lost = self.foretold = 0
        self.sure = self.longest(len(tokens))

    def longest(self, foretold: int) -> int:
        return 2 * (self.match + foretold)

    def find(self, lost: int) -> int | None:
        n, text = self.match, self.text[-self.match :]
        places = [end for end in range(n, len(self.tokens)) if len(text) == n and self.tokens[end - n : end] == text]
        return next((place for place in places if place >= lost), places[0] if places else None)

    def follow(self, token: int) -> None:
        self.text.append(token)
        if self.place is not None and self.tokens[self.place : self.place + 1] == [token]:
            self.place, self.foretold = self.place + 1, self.foretold + 1
            self.sure += 2
        else:
            if self.place is not None and self.place > self.start:
                self.lost = self.place
            self.place = self.find(self.lost)
            self.start = self.start if self.place is None else self.place
            self.sure = self.longest(0)

    def draft(self, count: int) -> list[int]:
        return [] if self.place is None else self.tokens[self.place :][: min(count, self.sure)]


def place(tokens: list[int], match: int = 3) -> Place:
    return Place(np.array(tokens, dtype=np.int64), match)


def drafts_after_each_token(made: Any, text: list[int], count: int = 5) -> list[list[int]]:
    drafts = [list(made.draft(count))]
    for token in text:
        made.follow([token]) if isinstance(made, Place) else made.follow(token)
        drafts.append(list(made.draft(count)))
    return drafts


def agrees(make: Callable[..., Any], tokens: list[int], match: int, text: list[int]) -> bool:
    ours, slow = make(tokens, match), Reference(tokens, match)
    same = drafts_after_each_token(ours, text) == drafts_after_each_token(slow, text)
    return same and ours.foretold == slow.foretold


@settings(max_examples=400, deadline=None)
@given(TOKENS, MATCH, TOKENS)
def test_the_place_is_that_of_the_slow_reference(tokens: list[int], match: int, text: list[int]) -> None:
    assert agrees(place, tokens, match, text)


@settings(max_examples=200, deadline=None)
@given(TOKENS, MATCH, TOKENS, st.integers(0, 40))
def test_how_the_text_is_cut_does_not_matter(tokens: list[int], match: int, text: list[int], cut: int) -> None:
    whole, parts = place(tokens, match), place(tokens, match)
    whole.follow(text)
    parts.follow(text[:cut])
    parts.follow(text[cut:])
    assert list(whole.draft(9)) == list(parts.draft(9))
    assert whole.foretold == parts.foretold


class SearchesBefore(Place):
    """Takes the first place of all."""

    @property
    def _lost_at(self) -> int:
        return 0

    @_lost_at.setter
    def _lost_at(self, place: int) -> None: ...


class ForgetsTheOldest(Place):
    """Lets all but the last token of the text pass for one that stands there."""

    def _take_up(self) -> None:
        tail, self._tail = self._tail, self._tail[-1:] * len(self._tail)
        super()._take_up()
        self._tail = tail


class NeverTakesUp(Place):
    def _take_up(self) -> None: ...


class TrustsChance(Place):
    def _take_up(self) -> None:
        super()._take_up()
        self._followed = 100


@pytest.mark.parametrize("wrong", [SearchesBefore, ForgetsTheOldest, NeverTakesUp, TrustsChance])
def test_a_wrong_place_is_noticed(wrong: type[Place]) -> None:
    generator = np.random.default_rng(0)
    texts = [(generator.integers(0, 4, 40).tolist(), generator.integers(0, 4, 40).tolist()) for _ in range(50)]

    def make(tokens: list[int], match: int) -> Place:
        return wrong(np.array(tokens), match)

    assert all(agrees(place, tokens, 2, text) for tokens, text in texts)
    assert not all(agrees(make, tokens, 2, text) for tokens, text in texts)


GIVEN = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([], [10, 11, 12]),
        ([10, 11], [12, 13, 14]),
        ([10, 11, 99], []),
        ([10, 11, 99, 13, 14], []),
        ([10, 11, 99, 13, 14, 15], [16, 17, 18]),  # one token changed
        ([10, 11, 98, 99, 12, 13, 14], [15, 16, 17]),  # two put in
        ([10, 11, 14, 15, 16], [17, 18, 19]),  # two left out
        (GIVEN[:9], [19]),
        (GIVEN, []),
        ([*GIVEN, 7], []),
        ([10, 11, 99, 17, 18, 19], []),  # nothing follows
    ],
    ids=str,
)
def test_what_is_drafted_after_a_change(text: list[int], draft: list[int]) -> None:
    made = place(GIVEN)
    made.follow(text)
    assert list(made.draft(3)) == draft


def test_drafts_are_short_after_a_change_and_grow_with_what_they_foretell() -> None:
    tokens = list(range(100, 200))
    made = place(tokens)
    assert len(made.draft(32)) == 32
    made.follow([*tokens[:10], 7, *tokens[11:14]])
    assert list(made.draft(32)) == tokens[14:20]
    made.follow(tokens[14:21])
    assert list(made.draft(32)) == tokens[21:41]
    made.follow(tokens[21:42])
    assert list(made.draft(32)) == tokens[42:74]


def test_a_place_that_nothing_follows_is_not_where_the_thread_was_lost() -> None:
    """A common turn of phrase late in the file must not hide the place before it."""
    common, rest, after = [1, 2, 3], [20, 21, 22, 23], [30, 31, 32]
    made = place([5, 6, *common, *rest, *common, *after])
    made.follow([5, 7, *common])
    assert list(made.draft(2)) == rest[:2]
    later = place([5, *rest, 6, *common, *after, *rest[:3], 40, 41])
    later.follow([5, 9, *common])
    assert list(later.draft(2)) == after[:2]
    later.follow(rest[:3])  # after the phrase, the text goes on as it does before it
    assert list(later.draft(1)) == rest[3:]


def test_a_match_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="match is 0"):
        place(GIVEN, 0)


def test_nothing_given_is_nothing_drafted() -> None:
    made = place([])
    made.follow([1, 2, 3, 4])
    assert (list(made.draft(4)), made.foretold) == ([], 0)
