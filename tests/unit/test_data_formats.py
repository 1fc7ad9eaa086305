"""The forms of rows, and one sentence for each row that is none of them."""

import json
import re
from typing import Any

import pytest

from tests.unit.chat_templates import chat
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.conversation import Conversation, Found, Text
from vllm_specext.training.data.formats import SPEAKERS, read_row
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.row import KEY, Row

VOCAB_SIZE = 100
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def read(**row: Any) -> Found:
    return read_row(row, "chats.jsonl line 3", VOCAB_SIZE)


def conversation(**row: Any) -> Conversation:
    found = read(**row)
    assert isinstance(found, Conversation)
    return found


def test_messages_stay_as_they_are() -> None:
    messages = [*MESSAGES, {"role": "tool", "content": "c", "tool_call_id": "7"}]
    found = conversation(messages=messages, id=4, text="other")
    assert list(found.messages) == messages
    assert found.tools is None


def test_parts_of_text_become_lines_as_in_vllm() -> None:
    content = ["one", {"type": "text", "text": "two"}]
    found = conversation(messages=[{"role": "user", "content": content}])
    assert found.messages[0]["content"] == "one\ntwo"


def test_parts_that_are_no_text_are_counted() -> None:
    content = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert read(messages=[{"role": "user", "content": content}]) == Reason.NOT_TEXT


@pytest.mark.parametrize("row", [{"messages": [{"role": "user", "content": "\ud800"}]}, {"text": "\udfff"}])
def test_half_a_surrogate_pair_is_counted(row: dict[str, Any]) -> None:
    assert read(**json.loads(json.dumps(row))) == Reason.NOT_UNICODE


def test_share_gpt_becomes_messages() -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "observation", "value": "c"}]
    found = conversation(conversations=turns, system="be kind")
    assert [(m["role"], m["content"]) for m in found.messages] == [
        ("system", "be kind"), ("user", "a"), ("assistant", "b"), ("tool", "c")
    ]  # fmt: skip
    # The same conversation has the same key in both forms.
    assert conversation(conversations=turns[:2]).key == conversation(messages=MESSAGES).key
    assert conversation(conversations=MESSAGES) == conversation(messages=MESSAGES)


@pytest.mark.parametrize("tools", [[{"name": "weather"}], json.dumps([{"name": "weather"}])])
def test_tools_are_a_list_or_json(tools: Any) -> None:
    assert conversation(messages=MESSAGES, tools=tools).tools == ({"name": "weather"},)


@pytest.mark.parametrize("tools", [[], "", " ", "[]", None])
def test_no_tools_are_none(tools: Any) -> None:
    assert conversation(messages=MESSAGES, tools=tools).tools is None


def test_a_prompt_is_what_a_user_says() -> None:
    found = conversation(prompt="What?", messages=None)
    assert found.messages == ({"role": "user", "content": "What?"},)
    assert not found.answered
    assert chat("a", "b").answered


def test_text_is_text() -> None:
    found = read(text="once")
    assert isinstance(found, Text)
    assert found.text == "once"


def test_prepared_rows_stay_as_they_are() -> None:
    found = read(token_ids=[1, 2, 99], loss_mask=[0, True, 1])
    assert isinstance(found, Row)
    assert (found.token_ids.tolist(), found.loss_mask.tolist()) == ([1, 2, 99], [False, True, True])
    assert KEY.fullmatch(found.key)


def prepared(*ids: int, learnt: int, **values: Any) -> Row:
    """A prepared row of which the last ``learnt`` tokens are in the loss."""
    found = read(token_ids=list(ids), loss_mask=[0] * (len(ids) - learnt) + [1] * learnt, **values)
    assert isinstance(found, Row)
    return found


def test_prepared_rows_with_the_same_prompt_belong_together() -> None:
    group = prepared(1, 2, 3, 4, 9, learnt=1).group
    assert prepared(1, 2, 3, 4, 8, 7, learnt=2).group == group
    assert prepared(1, 2, 3, 5, 9, learnt=1).group != group
    # What all texts begin with is no prompt.
    assert prepared(1, 9, 9, learnt=2).group != prepared(1, 8, 8, learnt=2).group
    assert prepared(9, 9, learnt=2).group != prepared(8, 8, learnt=2).group


def test_rows_that_we_prepared_keep_their_key() -> None:
    key = f"{'a' * 16}-{'b' * 16}-3"
    assert prepared(1, learnt=1, key=key).key == key
    assert prepared(1, learnt=1, key="mine").key != "mine"


def test_the_first_message_of_a_user_makes_the_group() -> None:
    same = [chat("a", "b"), chat("a", "c"), chat("a", "b", "c", "d", system="be kind")]
    assert len({said.key.partition("-")[0] for said in same}) == 1
    assert len({said.key for said in same}) == 3
    assert chat("b", "b").key.partition("-")[0] != same[0].key.partition("-")[0]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "other keys": ({"question": "a", "answer": "b"}, "has the keys question, answer; expected one of messages, .*"),
    "nothing": ({}, "has no keys; expected .*"),
    "many keys": ({str(i): i for i in range(1000)}, r"has the keys 0, 1, .*\.\.\.; expected .*"),
    "all null": ({"text": None}, "has the keys text; expected .*"),
    "messages as text": ({"messages": "[]"}, "has a str as messages; expected a list .*"),
    "no messages": ({"messages": []}, "has an empty list as messages; .*"),
    "no role": ({"messages": [{"content": "a"}]}, r"messages\[0\] has no role; expected role and content\."),
    "no content": ({"messages": [{"role": "user"}]}, r"messages\[0\] has content of type NoneType; .*"),
    "content": ({"messages": [*MESSAGES, {"role": "a", "content": 7}]}, r"messages\[2\] has content of type int; .*"),
    "part": ({"messages": [{"role": "user", "content": [7]}]}, r"messages\[0\] has content of type list; .*"),
    "message": ({"messages": ["a"]}, r"messages\[0\] has no role; .*"),
    "turn": ({"conversations": [{"value": "a"}]}, r"conversations\[0\] lacks from or value; expected both\."),
    "its message": ({"conversations": [{"role": "user"}]}, r"conversations\[0\] has content of type NoneType; .*"),
    "speaker": (
        {"conversations": [{"from": "narrator", "value": "a"}]},
        r"conversations\[0\] has from 'narrator'; expected one of human, .*",
    ),
    "value": ({"conversations": [{"from": "gpt", "value": None}]}, r"conversations\[0\] has a value of type NoneT.*"),
    "tools": ({"messages": MESSAGES, "tools": "weather"}, "has tools that are not JSON; expected a list."),
    "a tool": ({"messages": MESSAGES, "tools": {"name": "a"}}, "has tools of type dict; expected a list."),
    "empty prompt": ({"prompt": ""}, "has an empty text as prompt; expected text."),
    "text": ({"text": ["a"]}, "has a list as text; expected text."),
    "no mask": ({"token_ids": [1]}, "has token_ids without loss_mask; expected both."),
    "lengths": ({"token_ids": [1, 2], "loss_mask": [1]}, "has 2 token_ids, but 1 values in loss_mask; .*"),
    "id": ({"token_ids": [1, 100], "loss_mask": [1, 1]}, "has the id 100 in token_ids; .* from 0 to 99."),
    "negative id": ({"token_ids": [-1], "loss_mask": [1]}, "has the id -1 in token_ids; .*"),
    "no id": ({"token_ids": [True], "loss_mask": [1]}, "has the id True in token_ids; .*"),
    "mask": ({"token_ids": [1], "loss_mask": [0.5]}, "has 0.5 in loss_mask; expected 0, 1, true or false."),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_anything_else_is_refused_in_one_sentence(name: str) -> None:
    row, sentence = BAD[name]
    with pytest.raises(ConfigurationError) as error:
        read(**row)
    assert re.fullmatch(f"chats.jsonl line 3(: | ){sentence}", str(error.value)), str(error.value)
    assert str(error.value).endswith(".")
    assert len(str(error.value)) < 400


def test_all_speakers_have_a_role() -> None:
    assert set(SPEAKERS.values()) == {"user", "assistant", "tool", "system"}
