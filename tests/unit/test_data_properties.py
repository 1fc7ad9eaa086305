"""Random conversations in every template: exact or left out, never anything between."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.chat_templates import ENDS, MERGING, NO_PREFIX, TEMPLATES, answers_in, shifted, template
from vllm_specext.training.data.conversation import Conversation, conversation
from vllm_specext.training.data.formats import read_row
from vllm_specext.training.data.given import given_turns
from vllm_specext.training.data.hygiene import Hygiene
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.split import split, wanted
from vllm_specext.training.data.tally import Tally
from vllm_specext.training.data.turns import AnsweredTurn, rows_of

TEXT = st.text(st.sampled_from("yes no? \n\t.,é中🙂<think>|im_end0123"), max_size=12) | st.sampled_from(
    ["", " ", "\n", "The answer", "</s>", "<|im_end|>", "</think>", "assistant\n"]
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "system"]), TEXT).map(
        lambda said: {"role": said[0], "content": said[1]}
    ),
    min_size=1,
    max_size=7,
)
ALTERNATING = st.lists(TEXT, min_size=2, max_size=8).map(
    lambda texts: [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
)


def said(messages: list[dict[str, str]]) -> Conversation:
    found = conversation(tuple(messages), None)
    assert isinstance(found, Conversation)
    return found


@pytest.mark.parametrize("name", [*TEMPLATES, NO_PREFIX, MERGING])
@given(messages=MESSAGES | ALTERNATING)
@settings(max_examples=60)
def test_every_answer_is_in_the_loss_once_or_counted(name: str, messages: list[dict[str, str]]) -> None:
    used, one = template(name), said(messages)
    ((turns, left_out),) = given_turns([one], used, 10**6)
    places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    assert len(turns) + left_out.total() == max(len(places), 1)
    rows = rows_of(turns, one.key)
    assert [id for row in rows for id in row.token_ids[row.loss_mask]] == [id for turn in turns for id in turn.answer]
    for turn in turns:
        # What is before the answer is what the served target reads, id by id.
        before, with_answer = messages[: places[turn.number]], messages[: places[turn.number] + 1]
        assert turn.prompt == used.ids(before, None, generation_prompt=True)
        whole = used.ids(with_answer, None, generation_prompt=False)
        assert isinstance(whole, list)
        assert whole[: len(turn.ids)] == turn.ids


@pytest.mark.parametrize("name", ["mistral", "chatml", "llama"])
@given(messages=ALTERNATING)
@settings(max_examples=60)
def test_answers_decode_to_what_was_said(name: str, messages: list[dict[str, str]]) -> None:
    end, used = ENDS.get(name, "</s>"), template(name)
    one = said([message | {"content": message["content"].replace(end, "")} for message in messages])
    ((turns, _),) = given_turns([one], used, 10**6)
    texts = [str(one.messages[2 * turn.number + 1]["content"]) for turn in turns]
    expected = [f"{text.strip() if name == 'llama' else text}{end}" for text in texts]
    rows = rows_of(turns, one.key)
    assert [text for row in rows for text in answers_in(row, used)] == expected
    if any(len(turn.answer) < len(turn.prompt) for turn in turns):
        assert [text for row in rows for text in answers_in(shifted(row, 1), used)] != expected


@given(data=st.data())
@settings(max_examples=100)
def test_rows_share_no_token_in_the_loss(data: st.DataObject) -> None:
    """Turns whose prompts go on, or do not: the rows of both say every answer once, in its place."""
    turns: list[AnsweredTurn] = []
    token = iter(range(10**6))
    for number in range(data.draw(st.integers(1, 6))):
        goes_on = turns and data.draw(st.booleans())
        start = turns[-1].ids if goes_on else []
        prompt = start + [next(token) for _ in range(data.draw(st.integers(1, 4)))]
        turns.append(AnsweredTurn(number, prompt, [next(token) for _ in range(data.draw(st.integers(1, 4)))]))
    rows = rows_of(turns, "key")
    learnt = [id for row in rows for id in row.token_ids[row.loss_mask].tolist()]
    assert learnt == [id for turn in turns for id in turn.answer]
    assert len(set(learnt)) == len(learnt)
    by_key = {row.key: row.token_ids.tolist() for row in rows}
    assert all(by_key[f"key-{turn.number}"] == turn.ids for turn in turns if f"key-{turn.number}" in by_key)
    assert rows[-1].key == f"key-{turns[-1].number}"


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 3), min_size=1, max_size=12)), min_size=2))
@settings(max_examples=100)
def test_hygiene_and_split_keep_what_there_is(read: list[tuple[int, list[int]]]) -> None:
    rows: list[Any] = []
    for number, (group, ids) in enumerate(read):
        key = f"{group:016x}-{'0' * 16}-{number}"
        rows.append(read_row({"token_ids": ids, "loss_mask": [1] * len(ids), "key": key}, "here", 4))
    tally = Tally()
    kept = Hygiene(8, tally).cleaned(rows)
    assert len(kept) + tally.dropped.total() == len(rows)
    assert tally.dropped[Reason.DUPLICATE] == len(rows) - len({tuple(row.token_ids[:8].tolist()) for row in rows})
    assert all(1 <= len(row) <= 8 for row in kept)
    if len({row.group for row in kept}) > 1:
        train, valid = split(kept)
        assert min(len(train), len(valid)) > 0
        assert not {row.group for row in train} & {row.group for row in valid}
        random.Random(len(rows)).shuffle(kept)
        assert {row.key for row in split(kept)[1]} == {row.key for row in valid}
        assert len(valid) <= max(
            wanted(len(kept)), min(sum(r.group == g for r in kept) for g in {r.group for r in kept})
        )
