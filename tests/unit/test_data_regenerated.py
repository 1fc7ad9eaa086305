"""The target's own answers: its ids are what is in the loss, and its own text is the history."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.unit.answerers import Scripted, TinyTarget
from tests.unit.chat_templates import HARMONY, MERGING, TEMPLATES, answers_in, chat, shifted, template
from vllm_specext.training.data.answers import Answerer
from vllm_specext.training.data.conversation import Conversation, conversation
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.regenerated import Conversations, Regenerated, Room, questions
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.template import ChatTemplate
from vllm_specext.training.data.turns import rows_of

ROOM = Room(200, 40)
CHAT = chat("What is it?", "not learnt", "Why?", "not learnt", "Is it?")


def answered(
    said: Conversation, used: ChatTemplate, target: Answerer, room: Room = ROOM
) -> tuple[list[Row], Counter[Reason]]:
    (found,) = regenerated([said], used, target, room)
    return rows_of(found.turns, said.key), found.ended_early


def regenerated(
    said: Sequence[Conversation], used: ChatTemplate, target: Answerer, room: Room = ROOM
) -> list[Regenerated]:
    conversations = Conversations(used, target, room)
    begun = [conversations.begin(one) for one in said]
    while conversations.running:
        conversations.wait()
    assert all(one.is_over and one.tokens == sum(map(len, rows_of(one.turns, ""))) for one in begun)
    return begun


def in_the_loss(rows: Sequence[Row]) -> list[int]:
    return [id for row in rows for id in row.token_ids[row.loss_mask].tolist()]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_generated_token_is_in_the_loss_once_and_nothing_else_is(name: str) -> None:
    used = template(name)
    target = TinyTarget(used)
    said = [chat(f"What is {i}?", "x", "Why?", "x", "Is it?", "x") for i in range(6)]
    for one, found in zip(said, regenerated(said, used, target), strict=True):
        rows = rows_of(found.turns, one.key)
        generated = [id for turn in found.turns for id in target.said[f"{one.key}-{turn.number}"][1].token_ids]
        assert in_the_loss(rows) == generated
        assert in_the_loss([shifted(row, 1) for row in rows]) != generated
        # Each row is, id by id, what the target read and wrote in the last of its turns.
        for row in rows:
            turn, answer = target.said[row.key]
            assert row.token_ids.tolist() == [*turn.prompt_token_ids, *answer.token_ids]
    assert target.running[0] == 6
    assert max(turn.number for turn, _ in target.said.values()) == 2


def test_of_an_answer_in_channels_the_final_one_is_the_history() -> None:
    used = template(HARMONY)
    thought = "<|channel|>analysis<|message|>I think that it depends<|end|><|start|>assistant"
    said = [f"{thought}<|channel|>final<|message|>{answer}" for answer in ("yes", "no", "three")]
    target = Scripted(used, said)
    rows, reasons = answered(CHAT, used, target, Room(1000, 200))
    assert not reasons
    assert [answers_in(row, used) for row in rows] == [[f"{answer}</s>"] for answer in said]
    *_, last = target.turns
    prompt = used.tokenizer.decode(last.prompt_token_ids)
    assert prompt.count("<|channel|>final<|message|>") == 2
    assert "I think" not in prompt


def test_own_answers_are_the_history_and_share_a_row() -> None:
    used = template("chatml")
    target = Scripted(used, ["The answer", "yes, and no", "three"])
    (row,), reasons = answered(CHAT, used, target)
    assert not reasons
    assert answers_in(row, used) == ["The answer<|im_end|>", "yes, and no<|im_end|>", "three<|im_end|>"]
    assert "not learnt" not in used.tokenizer.decode(row.token_ids)
    first, second, _ = target.turns
    assert first.known == 0
    assert second.known == len(first.prompt_token_ids) + len(used.encode("The answer")) + 1
    assert second.prompt_token_ids[: len(first.prompt_token_ids)] == first.prompt_token_ids


def test_dropped_reasoning_begins_a_row() -> None:
    used = template("qwen")
    target = Scripted(used, ["<think>\nI think\n</think>\n\nyes", "<think>\nthat\n</think>\n\nno", "three"])
    rows, _ = answered(CHAT, used, target)
    assert [answers_in(row, used) for row in rows] == [
        ["<think>\nI think\n</think>\n\nyes<|im_end|>"],
        ["<think>\nthat\n</think>\n\nno<|im_end|>"],
        ["three<|im_end|>"],
    ]
    assert [turn.known for turn in target.turns] == [0, 0, 0]
    assert "yes" in used.tokenizer.decode(rows[1].token_ids)


def test_tokens_that_the_tokenizer_would_write_otherwise_stay_as_they_were_generated() -> None:
    used = template("chatml")
    spelled = [used.tokenizer.convert_tokens_to_ids(letter) for letter in "answer"]
    assert used.encode("answer") != spelled

    class Spelling(Scripted):
        def _answer(self, turn, text):  # type: ignore[no-untyped-def]
            answer = super()._answer(turn, text)
            return type(answer)((*spelled, answer.token_ids[-1]), True)

    rows, _ = answered(chat("What?", "x", "Why?"), used, Spelling(used, ["", ""]))
    # The second prompt has the answer as the tokenizer writes it, so its ids do not go on: another row.
    assert [row.token_ids[row.loss_mask][:-1].tolist() for row in rows] == [spelled, spelled]


def test_a_border_where_text_would_merge_is_none_for_ids() -> None:
    used = template(MERGING)
    (row,), _ = answered(chat("What?"), used, Scripted(used, ["yes"]))
    assert answers_in(row, used) == ["yes</s>"]


@pytest.mark.parametrize(
    ("script", "reason", "answers"),
    [
        (["yes", None, "no"], Reason.ANSWER_LOST, ["yes"]),
        (["yes", " no" * 60, "no"], Reason.UNFINISHED, ["yes", " no" * 40]),
        (["yes", "0" * 100, "no"], Reason.LOOP, ["yes", "0" * 100]),
    ],
)
def test_a_conversation_ends_where_going_on_would_be_guesswork(
    script: list[str | None], reason: Reason, answers: list[str]
) -> None:
    used = template("llama")
    room = ROOM if reason != Reason.LOOP else Room(400, 200)
    rows, reasons = answered(CHAT, used, Scripted(used, script), room)
    assert reasons == {reason: 1}
    assert [text.removesuffix("<|eot_id|>") for row in rows for text in answers_in(row, used)] == answers


def test_a_conversation_ends_before_results_of_tools() -> None:
    messages = (
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "content": "one"},
        {"role": "assistant", "content": "one"},
    )
    said = conversation(messages, None)
    assert isinstance(said, Conversation)
    used = template("llama")
    (row,), reasons = answered(said, used, Scripted(used, ["yes"]))
    assert reasons == {Reason.TOOLS: 1}
    assert answers_in(row, used) == ["yes<|eot_id|>"]


def test_a_full_row_ends_the_conversation_and_no_answer_is_too_long() -> None:
    used = template("llama")
    target = TinyTarget(used)
    first = len(used.ids(CHAT.messages[:1], None, generation_prompt=True))
    rows, reasons = answered(CHAT, used, target, Room(first + 1, 40))
    assert [len(row) for row in rows] == [first + 1]
    assert reasons in ({Reason.UNFINISHED: 1}, {Reason.PROMPT_TOO_LONG: 1})
    assert answered(CHAT, used, target, Room(first, 40)) == ([], {Reason.PROMPT_TOO_LONG: 1})


def test_a_template_that_refuses_ends_it() -> None:
    used = template("mistral")
    said = chat("What?", system="The answer")
    assert answered(said, used, Scripted(used, [])) == ([], {Reason.TEMPLATE_REFUSED: 1})


def test_without_a_user_there_is_nothing_to_answer() -> None:
    used = template("llama")
    said = conversation(({"role": "system", "content": "one"}, {"role": "assistant", "content": "two"}), None)
    assert isinstance(said, Conversation)
    assert answered(said, used, Scripted(used, [])) == ([], {Reason.NO_ANSWER: 1})


def test_messages_between_two_answers_are_asked_together() -> None:
    roles = ["assistant", "system", "user", "user", "assistant", "assistant", "user"]
    messages = [{"role": role, "content": str(i)} for i, role in enumerate(roles)]
    assert [[m["content"] for m in asked] for asked in questions(messages)] == [["1", "2", "3"], ["6"]]


def test_an_answerer_that_leaves_one_out_is_a_mistake() -> None:
    class Silent:
        def exchange(self, turns):  # type: ignore[no-untyped-def]
            return {}

        def abandon(self) -> None: ...

    with pytest.raises(ValueError, match="gave no answer"):
        answered(CHAT, template("llama"), Silent())
