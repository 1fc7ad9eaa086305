"""Prompt files of the benchmarks: which texts and tasks they give, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_specext.bench.prompt_files import PLACEHOLDER, load, read
from vllm_specext.bench.prompts import Message, Prompt, Rendering, first_of_each, question
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import served

POST = "Write a post."
ROWS: dict[str, tuple[dict[str, Any], Prompt]] = {
    "mt_bench": (
        {"question_id": 81, "category": "writing", "turns": [POST, "Rewrite it."]},
        question("writing", POST, "Rewrite it."),
    ),
    "spec_bench": ({"question_id": 1, "category": "rag", "turns": [POST]}, question("rag", POST)),
    "one_turn": ({"turns": POST}, question("one_turn", POST)),
    "gsm8k": ({"question": POST, "answer": "#### 4"}, question("gsm8k", POST)),
    "HumanEval": ({"task_id": "HumanEval/0", "prompt": POST, "test": "def check(): ..."}, Prompt("HumanEval", POST)),
    "own": ({"text": POST}, Prompt("own", POST)),
    "speed_bench": (
        {
            "question_id": "8e1",
            "category": "roleplay",
            "sub_category": None,
            "source": "s",
            "messages": [{"role": "user", "content": POST}, {"role": "user", "content": "Rewrite it."}],
        },
        question("roleplay", POST, "Rewrite it."),
    ),
    "chat": (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hello."},
                {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": POST},
            ]
        },
        Prompt(
            "chat",
            chat=(
                Message("system", "Be brief."),
                Message("user", "Hello."),
                Message("assistant", "Yes?"),
                Message("user", POST),
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_format_gives_its_turns_and_its_task(tmp_path: Path, name: str) -> None:
    row, expected = ROWS[name]
    lines = tmp_path / f"{name}.jsonl"
    lines.write_text(f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
    assert read(lines) == [expected] * 2
    array = tmp_path / f"{name}.json"
    array.write_text(json.dumps([row]))
    assert read(array) == [expected]


def test_how_often_a_row_is_asked() -> None:
    counts = {name: prompt.turns for name, (_, prompt) in ROWS.items()}
    assert {name for name, count in counts.items() if count == 2} == {"mt_bench", "speed_bench"}
    assert set(counts.values()) == {1, 2}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "a"}\nno JSON\n', "neither JSON nor JSON Lines"),
        (b"[]", "has no rows"),
        (b"", "has no rows"),
        (b'{"text": "a"}\n{"answer": "b"}\n', "row 2, has no prompt: none of messages, turns, question, prompt, text"),
        (b'[{"turns": []}]', "row 1, has no prompt"),
        (b'["a"]', "row 1, has no prompt"),
        (b"\xff\xfe\x00", "cannot be read (UnicodeDecodeError)"),
        (b'[{"turns": ["a", 2]}]', "row 1, has 2 as turns[1], but it must be a text"),
        (b'[{"turns": ["a", ""]}]', 'row 1, has "" as turns[1], but it must be a text'),
        (b'[{"question": ["a"]}]', 'row 1, has ["a"] as question, but it must be a text'),
        (b'[{"messages": "a"}]', 'row 1, has "a" as messages, but it must be a list'),
        (b'[{"messages": ["a"]}]', 'row 1, has "a" as messages[0], but it must be an object with role and content'),
        (
            b'[{"messages": [{"role": "tool", "content": "a"}]}]',
            'row 1, has "tool" as messages[0].role, but it must be one of system, user, assistant',
        ),
        (b'[{"messages": [{"role": "user"}]}]', "row 1, has null as messages[0].content, but it must be a text"),
        (
            b'[{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]',
            "row 1, has messages with nothing to ask",
        ),
        (b'[{"text": "a", "category": ["b"]}]', 'row 1, has ["b"] as category, but it must be a name'),
        (json.dumps([{"messages": [{"role": "user", "content": PLACEHOLDER}]}]).encode(), "run the prepare.py"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="FileNotFoundError"):
        read(tmp_path / "nowhere.json")


def test_so_many_of_each_task_are_kept_and_tasks_are_together() -> None:
    prompts = [Prompt(task, f"{task}{number}") for number in range(3) for task in "ab"]
    assert [one.text for one in first_of_each(prompts, 2)] == ["a0", "a1", "b0", "b1"]


def test_without_a_file_the_bundled_prompts_are_asked() -> None:
    assert {(one.task, one.chat) for one in load([], 4)} == {("code", ()), ("prose", ())}
    assert len(load([], 4)) == 8


def test_only_questions_go_through_the_chat_template() -> None:
    rendering = Rendering(served(None))
    assert rendering.text(Prompt("t", "Why?")) == "Why?"
    asked = rendering.text(question("t", "Why?"))
    assert asked == "<|user|>\nWhy?<|end|>\n<|assistant|>\n"
    assert rendering.tokenizer.decode(rendering.ids(question("t", "Why?"))) == asked
