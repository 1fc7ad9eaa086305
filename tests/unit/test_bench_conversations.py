"""Which turns of chats are asked, and with which answers before them."""

from collections.abc import Sequence
from typing import Any

import pytest

from vllm_specext.bench.conversations import choose
from vllm_specext.bench.prompts import Message, Prompt, Rendering, question
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import served
from vllm_specext.measure.bundled import TARGET

ROOM = 500
TOKENS = 40
LOOP = "round and round we go again " * 12


@pytest.fixture(scope="module")
def rendering() -> Rendering:
    return Rendering(served(None))


class Plain:
    """Answers in the rendering's ids; a question with "loop" in its last message gets a loop."""

    def __init__(self, rendering: Rendering) -> None:
        self.tokenizer = rendering.tokenizer
        self.calls: list[list[str]] = []

    def __call__(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        self.calls.append([self.tokenizer.decode(ids) for ids in prompts])
        return [self.tokenizer.encode(self.answer(text)) for text in self.calls[-1]]

    def answer(self, text: str) -> str:
        asked = text.rpartition("<|user|>")[2].partition("<|end|>")[0].strip()
        return LOOP if "loop" in asked else f"Answer to {asked}.<|end|>"


def test_every_turn_is_asked_after_the_plain_answers_to_those_before_it(rendering: Rendering) -> None:
    plain = Plain(rendering)
    found = choose([question("a", "one", "two", "three"), Prompt("b", "go on")], rendering, plain, TOKENS, ROOM)
    assert [len(call) for call in plain.calls] == [2, 1, 1]
    turns = ["<|user|>\none<|end|>\n<|assistant|>\n"]
    for asked, before in (("two", "one"), ("three", "two")):
        turns.append(f"{turns[-1]}Answer to {before}.<|end|>\n<|user|>\n{asked}<|end|>\n<|assistant|>\n")
    assert [one.text for one in found.asked] == [*turns, "go on"]
    assert [one.ids for one in found.asked[:3]] == [rendering.tokenizer.encode(turn) for turn in turns]
    assert found.told() == {
        "counted": 4,
        "left_out_as_too_long": 0,
        "left_out_as_loops": 0,
        "counted_by_task": {"a": 3, "b": 1},
    }


def test_another_answer_makes_another_prompt(rendering: Rendering) -> None:
    """What the next turn is depends on the answer, so it is asked for once, for all rows."""
    prompt = question("a", "one", "two")
    assert rendering.text(prompt, ["this"]) != rendering.text(prompt, ["that"])


def test_answers_that_are_given_are_kept_and_not_asked_for(rendering: Rendering) -> None:
    roles: tuple[Any, ...] = ("system", "user", "assistant", "user", "user")
    chat = tuple(Message(role, f"{role} {place}") for place, role in enumerate(roles))
    found = choose([Prompt("a", chat=chat)], rendering, Plain(rendering), TOKENS, ROOM)
    first, second = (one.text for one in found.asked)
    assert first.startswith("<|user|>\nsystem 0<|end|>\n<|user|>\nuser 1<|end|>\n<|assistant|>\nassistant 2<|end|>")
    assert first.endswith("<|user|>\nuser 3<|end|>\n<|assistant|>\n")
    assert second == f"{first}Answer to user 3.<|end|>\n<|user|>\nuser 4<|end|>\n<|assistant|>\n"


def test_a_chat_ends_before_its_first_loop_and_before_its_first_turn_that_is_too_long(rendering: Rendering) -> None:
    chats = [
        question("a", "one", "a loop", "three"),
        question("a", "one", "x y " * ROOM, "three"),
        question("a", "fine", "too"),
    ]
    found = choose(chats, rendering, Plain(rendering), TOKENS, ROOM)
    assert len(found.asked) == 4
    assert (found.left_out_as_loops, found.left_out_as_too_long) == (2, 2)
    assert sum(chat.turns for chat in chats) == 4 + 2 + 2


def test_where_loops_are_kept_only_answers_that_a_chat_goes_on_with_are_asked_for(rendering: Rendering) -> None:
    plain = Plain(rendering)
    found = choose([question("a", "a loop", "two"), question("a", "b")], rendering, plain, TOKENS, ROOM, True)
    assert [len(call) for call in plain.calls] == [1]
    assert len(found.asked) == 3
    plain.calls.clear()
    choose([question("a", "b")], rendering, plain, TOKENS, ROOM, keep_loops=True)
    assert plain.calls == []


def test_a_run_without_a_turn_that_counts_is_refused(rendering: Rendering) -> None:
    with pytest.raises(ConfigurationError, match=r"there is room for 60 of the 100 tokens .* has \d\d\d"):
        choose([question("a", "x y " * 100)], rendering, Plain(rendering), TOKENS, 100)
    with pytest.raises(ConfigurationError, match="the plain answers of all 1 prompts that fit are loops"):
        choose([question("a", "loop")], rendering, Plain(rendering), TOKENS, ROOM)


def test_without_a_chat_template_a_lone_question_is_asked_as_it_is_and_a_chat_is_refused() -> None:
    bare = Rendering(str(TARGET))
    bare.tokenizer.chat_template = None
    assert bare.text(question("a", "Why?")) == "Why?"
    with pytest.raises(ConfigurationError, match=r"^row 3 is a chat of 2 messages, but the tokenizer of --target"):
        bare.text(question("a", "Why?", "How?", where="row 3"))


def test_a_chat_that_the_template_refuses_is_told() -> None:
    strict = Rendering(str(TARGET))
    strict.tokenizer.chat_template = "{{ raise_exception('no system message') }}"
    with pytest.raises(ConfigurationError, match=r"row 3 is a chat that the chat template .* no system message\.$"):
        strict.text(question("a", "Why?", where="row 3"))
