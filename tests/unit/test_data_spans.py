"""Loss masks of given answers: what is in the loss are the answers, token for token, or nothing is."""

from collections import Counter

import pytest

from tests.unit.chat_templates import (
    ENDS,
    LLAMA,
    MERGING,
    NO_PREFIX,
    TEMPLATES,
    answers_in,
    chat,
    shifted,
    template,
)
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.conversation import Conversation, conversation
from vllm_specext.training.data.given import given_turns
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.template import ChatTemplate
from vllm_specext.training.data.turns import AnsweredTurn, rows_of

CHAT = chat("What is it?", "The answer is yes.", "Why?", "It depends", "One two?", "three, four\n\nfive")
THOUGHT = "<think>\n\n</think>\n\n"


def turns_of(said: Conversation, used: ChatTemplate, most: int) -> tuple[list[AnsweredTurn], Counter[Reason]]:
    (found,) = given_turns([said], used, most)
    return found


def rows(said: Conversation, used: ChatTemplate) -> list[Row]:
    turns, left_out = turns_of(said, used, 2048)
    assert not left_out
    return rows_of(turns, said.key)


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_in_the_loss_are_the_answers(name: str) -> None:
    used, end = template(name), ENDS.get(name, "</s>")
    found = [text for row in rows(CHAT, used) for text in answers_in(row, used)]
    before = THOUGHT if name == "qwen" else ""
    assert found == [f"{before}{message['content']}{end}" for message in CHAT.messages[1::2]]


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_mask_that_is_one_token_off_would_be_noticed(name: str, by: int) -> None:
    used = template(name)
    for row in rows(CHAT, used):
        right, wrong = answers_in(row, used), answers_in(shifted(row, by), used)
        assert all(a not in wrong for a in right)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_row_is_how_the_template_writes_the_conversation(name: str) -> None:
    used = template(name)
    written = used.tokenizer.apply_chat_template(list(CHAT.messages), return_dict=False)
    last = rows(CHAT, used)[-1].token_ids.tolist()
    assert written[: len(last)] == last
    # After the end of the answer there is nothing but the end of a line.
    assert used.tokenizer.decode(written[len(last) :]).strip() == ""


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "qwen"])
def test_turns_that_go_on_share_a_row(name: str) -> None:
    (row,) = rows(CHAT, template(name))
    assert row.key == f"{CHAT.key}-2"


def test_a_template_that_drops_earlier_reasoning_begins_a_row_for_each_turn() -> None:
    used = template("qwen")
    said = chat("Why?", "<think>\nI think\n</think>\n\nyes", "Is it?", "<think>\nthat\n</think>\n\nno")
    first, second = rows(said, used)
    assert answers_in(first, used) == ["<think>\nI think\n</think>\n\nyes<|im_end|>"]
    assert answers_in(second, used) == ["<think>\nthat\n</think>\n\nno<|im_end|>"]
    # The first answer is context in the second row, without its reasoning.
    assert "I think" not in used.tokenizer.decode(second.token_ids)
    assert "yes" in used.tokenizer.decode(second.token_ids)
    assert [first.key, second.key] == [f"{said.key}-0", f"{said.key}-1"]


def test_a_flag_of_the_template_moves_the_border() -> None:
    used = template("qwen", enable_thinking=False)
    first, *_ = rows(CHAT, used)
    assert answers_in(first, used)[0] == "The answer is yes.<|im_end|>"
    assert THOUGHT in used.tokenizer.decode(first.token_ids)
    assert used.record()["flags"] == {"enable_thinking": False}
    assert used.record()["sha256"] == template("qwen").record()["sha256"] != template("llama").record()["sha256"]


def test_without_the_prefix_property_nothing_is_in_the_loss() -> None:
    assert turns_of(CHAT, template(NO_PREFIX), 2048) == ([], Counter({Reason.NOT_A_PREFIX: 3}))


def test_tokens_that_merge_across_the_border_are_told_from_that() -> None:
    used = template(MERGING)
    turns, left_out = turns_of(CHAT, used, 2048)
    # The prompt ends in the token of a space; the given text has that space in the token of the next word.
    assert (turns, left_out) == ([], Counter({Reason.MERGED: 3}))
    prompt = used.ids(CHAT.messages[:1], None, generation_prompt=True)
    whole = used.ids(CHAT.messages[:2], None, generation_prompt=False)
    assert used.tokenizer.decode(whole).startswith(used.tokenizer.decode(prompt))
    assert whole[: len(prompt)] != prompt


def test_only_the_turns_that_merge_are_left_out() -> None:
    used = template("chatml")
    said = chat("Why?", "\nyes", "Is it?", "no", "What?", "three")
    turns, left_out = turns_of(said, used, 2048)
    assert left_out == Counter({Reason.MERGED: 1})  # one token for two ends of lines
    (row,) = rows_of(turns, said.key)
    assert answers_in(row, used) == ["no<|im_end|>", "three<|im_end|>"]
    assert "\nyes" in used.tokenizer.decode(row.token_ids)


def test_what_a_target_has_to_write_itself_is_part_of_its_answer() -> None:
    """Without a generation prompt, but with a heading: the served model begins with the heading, too."""
    used = template("{% for m in messages %}{{ m.role }}>\n{{ m.content }}</s>\n{% endfor %}")
    (row,) = rows(chat("Why?", "yes"), used)
    assert answers_in(row, used) == ["assistant>\nyes</s>"]


def test_a_template_that_refuses_the_messages_is_counted() -> None:
    said = chat("Why?", "yes", system="The answer is no")
    assert turns_of(said, template("mistral"), 2048) == ([], Counter({Reason.TEMPLATE_REFUSED: 1}))


def test_messages_that_a_template_is_not_made_for_are_counted() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    said = conversation(({"role": "user", "content": "Why?"}, calls), None)
    assert isinstance(said, Conversation)
    assert turns_of(said, template(LLAMA.replace(" | trim", " + ''")), 9)[1] == {Reason.TEMPLATE_REFUSED: 1}


def test_a_conversation_without_an_answer_is_counted() -> None:
    assert turns_of(chat("Why?"), template("llama"), 2048) == ([], Counter({Reason.NO_ANSWER: 1}))


def test_what_does_not_fit_is_not_read_on() -> None:
    used = template("llama")
    length = len(used.ids(CHAT.messages[:3], None, generation_prompt=True))
    turns, left_out = turns_of(CHAT, used, length)
    assert (len(turns), left_out) == (1, Counter({Reason.PROMPT_TOO_LONG: 2}))


def test_tools_are_passed_to_the_template() -> None:
    said = conversation(CHAT.messages, ({"name": "weather"},))
    assert isinstance(said, Conversation)
    first, *_ = rows(said, template("qwen"))
    assert '{"name": "weather"}' in template("qwen").tokenizer.decode(first.token_ids)


def test_a_target_without_a_template_is_refused() -> None:
    used = ChatTemplate(
        template("llama").tokenizer.__class__(tokenizer_object=template("llama").tokenizer._tokenizer), {1}
    )
    with pytest.raises(ConfigurationError, match=r"no chat template.* expected rows of text"):
        turns_of(CHAT, used, 2048)
    assert used.tokenizer.decode(used.encode("yes")) == "yes"
    assert used.record()["sha256"] is None


def test_conversations_are_told_apart_where_some_turns_are_left_out() -> None:
    used = template("mistral")
    several = [chat("a", "b"), chat("a", "b", system="c"), chat("d", "e", "f", "g"), chat("h"), chat("i", "")]
    found = given_turns(several, used, 2048)
    assert found == [turns_of(said, used, 2048) for said in several]
    assert [len(turns) for turns, _ in found] == [1, 0, 2, 0, 1]
    assert given_turns([], used, 2048) == []
