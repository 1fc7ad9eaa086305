"""The place in a text of its own, against a slow reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_specext.tree.own_text import LONGEST, OwnText

TOKENS = st.lists(st.integers(0, 2), max_size=40)


def alike(text: list[int], end: int) -> int:
    """How many tokens before ``end`` are the text's last ones."""
    count = 0
    while count < min(end, LONGEST) and text[end - count - 1] == text[len(text) - count - 1]:
        count += 1
    return count


def places(text: list[int], match: int) -> set[int]:
    """Where the most of the last tokens stand before."""
    found = {end: alike(text, end) for end in range(1, len(text))}
    most = max(found.values(), default=0)
    return {end for end, count in found.items() if count == most} if most >= match else set()


@settings(max_examples=300, deadline=None)
@given(TOKENS, st.integers(1, 3), TOKENS)
def test_it_is_taken_up_where_most_speaks_for_it(prompt: list[int], match: int, answer: list[int]) -> None:
    place = OwnText(np.array(prompt, dtype=np.int64), match)
    held: int | None = None
    for end in range(len(answer) + 1):
        text = prompt + answer[:end]
        goes_on = held is not None and end > 0 and text[held] == answer[end - 1]
        held = held + 1 if goes_on and held is not None else place._next
        assert place._next == held
        if not goes_on:
            assert held in places(text, match) if held is not None else not places(text, match)
        drafted = place.draft(5).tolist()
        assert len(drafted) == (0 if held is None else min(5, 2 * place.evidence))
        if held is not None:
            assert drafted == (text[held:] * 5)[: len(drafted)]
        place.follow(answer[end : end + 1])


def test_a_thread_is_held_through_what_is_repeated() -> None:
    place = OwnText(np.array([7, 8]), 2)
    place.follow([*range(20), 3, 4])
    assert place.draft(8).tolist() == [5, 6, 7, 8]  # no more than twice as many as speak for the place
    place.follow([5, 6, 7])
    assert place.evidence == 5
    assert place.draft(99).tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 16, 17]


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),  # round in a circle
        ([5, 5, 5], [5, 5, 5, 5]),
        ([5, 5, 5, 9, 5, 5, 5, 5], [5, 5, 5, 5]),  # what was said most often in a row
        ([1, 2, 6, 9, 1, 2, 7, 9, 1, 2], [7, 9, 1, 2]),  # 9, 1, 2 stands once before
        ([1, 2, 6, 1, 2, 7, 8, 1, 2], [7, 8, 1, 2]),  # the newest
        ([1, 2], []),
        ([], []),
    ],
    ids=str,
)
def test_what_is_expected_next(text: list[int], draft: list[int]) -> None:
    assert OwnText(np.array(text, dtype=np.int64), 2).draft(4).tolist() == draft


def test_the_rewriting_of_a_file_goes_on_after_a_change() -> None:
    file = [10, 11, 12, 1, 2, 13, 14, 1, 2, 15, 16]
    place = OwnText(np.array([*file, 99]), 2)
    place.follow([10, 11])
    assert place.draft(3).tolist() == [12, 1, 2]
    place.follow([12, 98, 1, 2])  # a token was put in; 1, 2 stands twice
    assert place.draft(2).tolist() == [13, 14]
