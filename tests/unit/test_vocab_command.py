"""``vllm-specext vocab`` counts tokens in texts of any size, and writes what ``draft_vocab_file`` takes."""

import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.test_foreign_pair import write_model
from vllm_specext.cli import app
from vllm_specext.cli.vocab import sizes
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods import token_counts
from vllm_specext.methods.draft_vocabulary import read_file
from vllm_specext.methods.token_counts import count, coverage, ordered, pieces, strings


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "250")
    return CliRunner()


def said(content: bytes, name: str = "text") -> list[str]:
    return list(pieces(io.BytesIO(content), Path(name)))


def test_the_command_writes_special_tokens_first_and_then_the_most_frequent(wide: CliRunner, tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", [("a", "b")], vocab_size=300)
    one, other, output = (tmp_path / name for name in ("one", "other.jsonl", "ids.json"))
    one.write_text("ababab c")
    other.write_text(json.dumps({"messages": [{"role": "user", "content": "cc<end>"}]}) + "\n")
    arguments = ["vocab", "--target", str(target), "--text", str(one), "--text", str(other), "--output", str(output)]
    result = wide.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    content = json.loads(output.read_text())
    # Three of ab and of c, one of each other: a blank, and what spells the end out in a text.
    assert (content["target"], content["vocab_size"], content["counted"]) == (str(target), 300, 12)
    ids = read_file(output, 300)
    assert ids[0] == 257  # <end>
    assert sorted(ids[1:3]) == sorted([256, 66])
    assert len(ids) == 1 + 8
    assert "12 tokens counted, 8 of the target's 300 among them" in result.output
    assert "9 ids written" in result.output


def test_without_output_the_table_alone_is_shown(wide: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abc")
    target = write_model(tmp_path / "target")
    result = wide.invoke(app, ["vocab", "--target", str(target), "--text", str(tmp_path / "text")])
    assert result.exit_code == 0
    assert "100.00%" in result.output
    assert "written" not in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"text", "target"}


def test_the_command_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abc")
    arguments = ["vocab", "--target", str(write_model(tmp_path / "target")), "--text", str(tmp_path / "text")]
    script = (
        f"import sys; from vllm_specext.cli import app; app({arguments!r}, standalone_mode=False); "
        "print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("text", None, ["which is no file"]),
        ("text", b"", ["no text"]),
        ("text", b"a\xff", ["not text in UTF-8"]),
        ("text", "é".encode()[:1], ["not text in UTF-8"]),
        ("chats.jsonl", b'{"text": "a"}\n{', ["line 2 is not JSON"]),
        ("chats.jsonl", b'{"a": "b"}\n', ["no text"]),
    ],
)
def test_a_text_that_cannot_be_used_is_named(
    wide: CliRunner, tmp_path: Path, name: str, content: bytes | None, words: list[str]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    target = write_model(tmp_path / "target")
    error = wide.invoke(app, ["vocab", "--target", str(target), "--text", str(path)]).exception
    assert isinstance(error, ConfigurationError)
    assert all(word in str(error) for word in [repr(str(path)), *words]), error


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(wide: CliRunner, tmp_path: Path) -> None:
    arguments = ["vocab", "--target", "./gone", "--text", "./gone", "--output", str(tmp_path)]
    error = wide.invoke(app, arguments).exception
    assert isinstance(error, ConfigurationError)
    assert "--output is" in str(error)


def test_a_file_is_read_in_pieces_of_whole_lines_and_whole_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counts, "PIECE", 5)
    text = "one\ntwo three\nfour\n"
    assert said(text.encode()) == ["one\ntwo th", "ree\nfour\n"]
    assert all(piece.endswith("\n") for piece in said(b"ab\ncd\nef\ngh\n"))
    endless = "aé" * 50
    assert "".join(said(endless.encode())) == endless
    assert max(map(len, said(endless.encode()))) <= 10


def test_a_line_that_is_too_long_for_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counts, "MAX_ROW", 20)
    with pytest.raises(ConfigurationError, match="line 2 has more than 20 bytes"):
        said(b'{"text": "a"}\n{"text": "aaaaaaaaaaaaaaa"}\n', "rows.jsonl")


def test_of_a_row_counts_what_is_said_however_deep_it_lies() -> None:
    chat = {"id": "x", "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]}
    assert list(strings(chat)) == ["one", "two"]
    assert list(strings({"conversations": [{"from": "human", "value": "three"}], "text": "four"})) == ["four", "three"]
    assert list(strings({"content": [{"type": "text", "text": "five"}]})) == ["five"]
    assert list(strings(["text", 1, None])) == []


def test_batches_are_counted_like_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counts, "BATCH", 2)
    batches: list[int] = []

    def encode(texts: list[str]) -> list[list[int]]:
        batches.append(len(texts))
        return [[ord(letter) for letter in text] for text in texts]

    assert count(["ab", "a", "ba"], encode) == Counter({97: 3, 98: 2})  # type: ignore[arg-type]
    assert batches == [2, 1]


def test_order_and_coverage_count_special_tokens_as_what_they_are() -> None:
    counts = Counter({5: 1, 7: 4, 3: 4, 9: 1})
    ids = ordered(counts, {9, 2})
    assert ids == [2, 9, 3, 7, 5]
    assert coverage(ids, counts) == [0, 0, 0.1, 0.5, 0.9, 1]


def test_the_sizes_shown_are_powers_of_two_and_all_there_are() -> None:
    assert sizes(5) == [5]
    assert sizes(256) == [256]
    assert sizes(1500) == [256, 512, 1024, 1500]
    assert sizes(2048) == [256, 512, 1024, 2048]
