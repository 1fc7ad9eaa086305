"""What --data may name: files, folders and data sets on the hub, and one sentence for what cannot be read."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data import json_rows, tables
from vllm_specext.training.data.sources import rows_of, rows_of_all

ROWS = [{"prompt": "a"}, {"messages": [{"role": "user", "content": "b", "name": "n"}], "text": "c"}]


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    keys = dict.fromkeys(key for row in rows for key in row)
    parquet.write_table(pa.table({key: [row.get(key) for row in rows] for key in keys}), path)
    return path


def read(*data: Path | str) -> list[dict[str, Any]]:
    return [row for _, row in rows_of_all([str(one) for one in data])]


def test_lines_and_lists_of_json(tmp_path: Path) -> None:
    text = "\n\n".join(map(json.dumps, ROWS))
    for name in ("a.jsonl", "b.json"):
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name) == ROWS
        assert [where for where, _ in rows_of(str(tmp_path / name))] == [f"{tmp_path / name} line {n}" for n in (1, 3)]
    (tmp_path / "c.json").write_text(" " + json.dumps(ROWS, indent=1))
    assert read(tmp_path / "c.json") == ROWS
    assert [where for where, _ in rows_of(str(tmp_path / "c.json"))][1] == f"{tmp_path / 'c.json'} row 2"


def test_rows_of_a_table_are_without_what_other_rows_have(tmp_path: Path) -> None:
    rows = [*ROWS, {"messages": [{"role": "assistant", "content": "d", "tool_calls": [{"a": 1}]}], "other": 1}]
    path = table(tmp_path / "a.parquet", rows)
    assert parquet.read_table(path).to_pylist()[1]["messages"][0] == ROWS[1]["messages"][0] | {"tool_calls": None}
    assert read(path) == [*ROWS, {"messages": rows[2]["messages"]}]
    assert [where for where, _ in rows_of(str(path))][2] == f"{path} row 3"


def test_a_folder_is_all_files_in_it_by_their_names(tmp_path: Path) -> None:
    lines(tmp_path / "b.jsonl", [{"text": "2"}])
    lines(tmp_path / "a" / "x.json", [{"text": "1"}])
    table(tmp_path / "c.parquet", [{"text": "3"}])
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "stats.json").write_text("figures")
    assert [row["text"] for row in read(tmp_path)] == ["1", "2", "3"]


def test_several_are_read_in_turn(tmp_path: Path) -> None:
    a = lines(tmp_path / "a.jsonl", [{"text": text} for text in "adf"])
    b = lines(tmp_path / "b.jsonl", [{"text": text} for text in "be"])
    c = lines(tmp_path / "c.jsonl", [{"text": text} for text in "c"])
    assert "".join(row["text"] for row in read(a, b, c)) == "abcdef"


class Hub:
    """In the place of ``datasets.load_dataset``: what is asked, and rows as a stream of them has them."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **values: Any) -> datasets.IterableDataset:
        self.asked.append((args, values))
        return datasets.Dataset.from_list(self.rows).to_iterable_dataset()


@pytest.mark.parametrize(
    ("name", "place", "split"),
    [("hub:owner/chats", "owner/chats", "train"), ("hub:chats:train_sft", "chats", "train_sft")],
)
def test_what_is_asked_of_the_hub(name: str, place: str, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub([{**ROWS[1], "id": 1}, {"text": "other", "id": 2}])
    monkeypatch.setattr(datasets, "load_dataset", hub)
    found = list(rows_of(name))
    # Streamed, so that nothing is stored; nothing that would run code of a data set.
    assert hub.asked == [((place,), {"split": split, "streaming": True})]
    assert found == [(f"hub:{place}:{split} row 1", ROWS[1]), (f"hub:{place}:{split} row 2", {"text": "other"})]


def test_what_is_asked_of_the_hub_is_what_datasets_takes(tmp_path: Path) -> None:
    """The same call on a data set that is a folder here."""
    lines(tmp_path / "set" / "train.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    assert [row for _, row in tables.hub_rows(str(tmp_path / "set"), "train")] == [{"prompt": "a"}, {"prompt": "b"}]
    with pytest.raises(ConfigurationError, match=r"test cannot be read: ValueError \(Bad split: test"):
        list(tables.hub_rows(str(tmp_path / "set"), "test"))


@pytest.mark.parametrize(
    "error", [ConnectionError("no network\nmore"), datasets.exceptions.DatasetNotFoundError("gone")]
)
def test_a_hub_that_does_not_answer_is_one_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ConfigurationError) as refused:
        list(rows_of("hub:owner/chats"))
    first = str(error).splitlines()[0]
    assert str(refused.value) == f"hub:owner/chats:train cannot be read: {type(error).__name__} ({first})."


Make = Callable[[Path], Any]
BAD: dict[str, tuple[Make, str]] = {
    "gone": (lambda at: at / "none.jsonl", "--data is '.*none.jsonl', which is neither a file nor a folder."),
    "ending": (lambda at: lines(at / "a.csv", [1]), r"--data is '.*a.csv'; expected a name that ends in .jsonl, .*"),
    "empty folder": (lambda at: at, "--data is '.*', a folder without a file that ends in .*"),
    "empty": (lambda at: lines(at / "a.jsonl", []), "--data is '.*a.jsonl', which is empty."),
    "not JSON": (
        lambda at: (at / "a.jsonl").write_text('{"text": "a"}\n{"text": \n') and at / "a.jsonl",
        ".*a.jsonl line 2 is not JSON.",
    ),
    "a list too little": (lambda at: (at / "a.json").write_text("[{}") and at / "a.json", ".*a.json is not JSON."),
    "a number": (lambda at: lines(at / "a.jsonl", [{}, 7]), ".*a.jsonl line 2 is a int; expected an object with keys."),
    "numbers": (lambda at: lines(at / "a.json", [[{}, 7]]), ".*a.json row 2 is a int; expected an object with keys."),
    "Latin": (
        lambda at: (at / "a.jsonl").write_bytes(b'{"a": "\xe4"}') and at / "a.jsonl",
        ".*line 1 is not text in .*",
    ),
    "deep": (lambda at: (at / "a.jsonl").write_text("[" * 3500) and at / "a.jsonl", ".*a.jsonl is not JSON."),
    "a long line": (
        lambda at: lines(at / "a.jsonl", [{"text": "a" * 2000}]),
        ".*a.jsonl line 1 has more than 1000 bytes; .*",
    ),
    "a long list": (
        lambda at: lines(at / "a.json", [[{"text": "a" * 100}] * 50]),
        ".*a.json is one list of more than 4000 bytes; .*",
    ),
    "no parquet": (
        lambda at: (at / "a.parquet").write_text("PAR1 no") and at / "a.parquet",
        r".*a.parquet is not a parquet file that can be read \(ArrowInvalid\).",
    ),
    "columns": (
        lambda at: table(at / "a.parquet", [{"question": "a", "answer": "b"}]),
        ".*a.parquet has the columns question, answer; expected one of messages, .*",
    ),
    "a large group": (
        lambda at: table(at / "a.parquet", [{"text": str(i) * 50} for i in range(99)]),
        r".*a.parquet has \d+ bytes in row group 0; expected at most 3000.",
    ),
    "no hub name": (lambda _: "hub:", "--data is 'hub:'; expected hub:NAME or hub:NAME:SPLIT."),
    "a hub address": (lambda _: "hub:https://x/y", "--data is 'hub:https://x/y'; expected hub:NAME .*"),
    "a hub split": (lambda _: "hub:a/b:train:x", "--data is 'hub:a/b:train:x'; expected .*"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "MAX_LINE", 1000)
    monkeypatch.setattr(json_rows, "MAX_LIST", 4000)
    monkeypatch.setattr(tables, "MAX_GROUP", 3000)
    make, sentence = BAD[name]
    data = make(tmp_path)
    with pytest.raises(ConfigurationError) as error:
        read(data)
    assert re.fullmatch(sentence, str(error.value)), str(error.value)


def test_a_file_that_is_not_there_is_refused_before_any_is_read(tmp_path: Path) -> None:
    good = lines(tmp_path / "a.jsonl", [{"text": "a"}])
    with pytest.raises(ConfigurationError, match="neither a file"):
        rows_of_all([str(good), str(tmp_path / "none.jsonl")])
