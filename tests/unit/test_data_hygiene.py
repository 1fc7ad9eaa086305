"""What becomes of rows that loop, are too long, come twice or teach nothing; and which are for validation."""

import random
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.loops import is_loop
from vllm_specext.training.data.hygiene import Hygiene, loop_start, spans
from vllm_specext.training.data.loops import FEWEST, LONGEST, TIMES, before_loop
from vllm_specext.training.data.row import Row, make_row
from vllm_specext.training.data.split import split, wanted
from vllm_specext.training.data.tally import Tally

ROOT = Path(__file__).parents[2]
VARIED = list(range(1000, 1100))


@pytest.mark.parametrize("period", [1, 5, 12, 13, LONGEST])
def test_a_loop_is_cut_before_its_first_repeat(period: int) -> None:
    loop = (list(range(period)) * FEWEST)[: max(TIMES * period, FEWEST)]
    assert before_loop(VARIED + loop + VARIED) == len(VARIED) + period
    assert before_loop(VARIED + loop[:-1] + VARIED) == 2 * len(VARIED) + len(loop) - 1


def test_what_is_no_loop_stays() -> None:
    assert before_loop([]) == 0
    assert before_loop([7]) == 1
    assert before_loop([*VARIED, 1, *VARIED, 2, *VARIED, 3, *VARIED]) == 4 * len(VARIED) + 3
    assert before_loop(list(range(LONGEST + 1)) * TIMES) == (LONGEST + 1) * TIMES


def test_against_a_plain_search() -> None:
    def repeats(ids: list[int], end: int) -> bool:
        """Whether from ``end`` on a loop goes on."""
        return any(
            all(ids[i] == ids[i - period] for i in range(end, end + need))
            for period in range(1, min(end, LONGEST) + 1)
            if end + (need := max((TIMES - 1) * period, FEWEST - period)) <= len(ids)
        )

    draw = random.Random(0)
    found = 0
    for _ in range(60):
        loop = [draw.randrange(3) for _ in range(draw.randint(1, 30))]
        ids = [draw.randrange(3) for _ in range(draw.randint(0, 40))] + loop * draw.randint(1, 8)
        first = next((end for end in range(1, len(ids)) if repeats(ids, end)), len(ids))
        assert before_loop(ids) == first
        found += first < len(ids)
    assert 10 < found < 50


def test_real_text_is_no_loop_by_this_rule_but_by_the_one_for_short_answers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "vllm_specext/demo/models/target")
    text = "".join(file.read_text() for file in sorted((ROOT / "vllm_specext/engine").rglob("*.py")))[:200_000]
    ids = tokenizer(text, verbose=False)["input_ids"]
    pieces = [ids[start : start + 1000] for start in range(0, len(ids) - 1000, 1000)]
    assert len(pieces) > 40
    assert sum(before_loop(piece) < len(piece) for piece in pieces) == 0
    assert sum(map(is_loop, pieces)) > len(pieces) / 2


def row(ids: list[int], learnt: int | None = None, group: str = "0" * 16, number: int = 0) -> Row:
    """A row of which all is learnt, or the last ``learnt`` tokens."""
    start = 0 if learnt is None else len(ids) - learnt
    return make_row(ids, [i >= start for i in range(len(ids))], f"{group}-{'0' * 16}-{number}")


def test_only_what_is_learnt_can_loop() -> None:
    asked = [1, 2, 3] * 30
    assert loop_start(row(asked + VARIED, learnt=len(VARIED))) == len(asked) + len(VARIED)
    assert loop_start(row(VARIED + asked, learnt=len(asked))) == len(VARIED) + 3
    assert loop_start(row(asked + VARIED)) == 3


def test_spans_are_where_the_mask_is_true() -> None:
    assert spans(np.array([1, 1, 0, 1, 0, 0, 1], dtype=bool)) == [(0, 2), (3, 4), (6, 7)]
    assert spans(np.zeros(3, dtype=bool)) == spans(np.zeros(0, dtype=bool)) == []


def test_rows_are_cut_or_dropped_and_counted() -> None:
    tally = Tally()
    hygiene = Hygiene(150, tally)
    rows = [
        row(VARIED, number=0),
        row(VARIED, learnt=1, number=1),
        row(VARIED * 2, number=2),
        row(VARIED + [1] * 50, number=3),
        row(VARIED, learnt=0, number=4),
        row(VARIED[1:], number=0),
    ]
    assert [len(kept) for kept in hygiene.cleaned(rows)] == [100, 150, 101]
    assert hygiene.cleaned([row([9] * 151, learnt=1, number=5)]) == []
    # The same tokens, and the same key.
    assert tally.dropped == {"duplicate": 2, "no_loss_token": 2}
    assert +tally.cut == {"max_length": 1, "loop": 1}


def many(groups: int, each: int) -> list[Row]:
    draw = random.Random(groups)
    return [row([i], group=f"{draw.getrandbits(64):016x}") for i in range(groups)] * each


@pytest.mark.parametrize(
    ("rows", "expected"), [(2, 1), (9, 1), (100, 10), (1999, 199), (5000, 200), (50_000, 500), (10**6, 1000)]
)
def test_how_many_rows_are_for_validation(rows: int, expected: int) -> None:
    assert wanted(rows) == expected


@pytest.mark.parametrize(("groups", "each"), [(2, 1), (2, 50), (30, 1), (30, 3), (3000, 1), (3000, 2)])
def test_no_conversation_is_on_both_sides(groups: int, each: int) -> None:
    rows = many(groups, each)
    train, valid = split(rows)
    assert {one.group for one in train} & {one.group for one in valid} == set()
    assert len(train) + len(valid) == len(rows)
    assert train
    assert valid
    if each < wanted(len(rows)):
        assert wanted(len(rows)) - each < len(valid) <= wanted(len(rows))
    # The same side whatever the order; and the split by rows would be no such thing.
    again, _ = split(rows[::-1])
    assert {one.group for one in again} == {one.group for one in train}
    if each > 1:
        assert {one.group for one in rows[:1]} & {one.group for one in rows[1:]}


def test_a_message_that_half_of_all_begin_with_is_not_for_validation() -> None:
    rows = [*many(40, 1), *[row([7], group="0" * 16)] * 40]
    _, valid = split(rows)
    assert len(valid) == 8
    assert "0" * 16 not in {one.group for one in valid}


def test_one_conversation_alone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="all rows begin with the same user message"):
        split([row([1]), row([2])])
