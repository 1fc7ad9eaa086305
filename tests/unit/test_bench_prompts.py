"""Prompt files of the benchmarks: which texts and tasks they give, and what is refused."""

import json
from pathlib import Path

import pytest

from vllm_specext.bench.prompts import Prompt, Rendering, first_of_each, load, read
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import served

ROWS = {
    "mt_bench": ({"question_id": 81, "category": "writing", "turns": ["Write a post.", "Rewrite it."]}, "writing"),
    "spec_bench": ({"question_id": 1, "category": "rag", "turns": ["Write a post."]}, "rag"),
    "gsm8k": ({"question": "Write a post.", "answer": "#### 4"}, "gsm8k"),
    "HumanEval": ({"task_id": "HumanEval/0", "prompt": "Write a post.", "test": "def check(): ..."}, "HumanEval"),
    "own": ({"text": "Write a post."}, "own"),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_format_gives_its_first_turn_and_its_task(tmp_path: Path, name: str) -> None:
    row, task = ROWS[name]
    lines = tmp_path / f"{name}.jsonl"
    lines.write_text(f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
    is_question = "turns" in row or "question" in row
    assert read(lines) == [Prompt(task, "Write a post.", is_question)] * 2
    array = tmp_path / f"{name}.json"
    array.write_text(json.dumps([row]))
    assert read(array) == [Prompt(task, "Write a post.", is_question)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "a"}\nno JSON\n', "neither JSON nor JSON Lines"),
        (b"[]", "has no rows"),
        (b"", "has no rows"),
        (b'{"text": "a"}\n{"answer": "b"}\n', "has no prompt in row 2: none of turns, question, prompt, text holds"),
        (b'[{"turns": []}]', "no prompt in row 1"),
        (b'["a"]', "no prompt in row 1"),
        (b"\xff\xfe\x00", "cannot be read (UnicodeDecodeError)"),
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
    assert {(one.task, one.question) for one in load([], 4)} == {("code", False), ("prose", False)}
    assert len(load([], 4)) == 8


def test_only_questions_go_through_the_chat_template() -> None:
    rendering = Rendering(served(None))
    assert rendering.text(Prompt("t", "Why?")) == "Why?"
    asked = rendering.text(Prompt("t", "Why?", question=True))
    assert asked == "<|user|>\nWhy?<|end|>\n<|assistant|>\n"
    assert rendering.tokenizer.decode(rendering.ids(Prompt("t", "Why?", question=True))) == asked
