"""Prepared data on disk: the same rows, the same bytes, complete or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.token_counts import coverage, ordered
from vllm_specext.training.data import folder as written
from vllm_specext.training.data.folder import read_data, read_stats, write_data
from vllm_specext.training.data.row import Row, make_row
from vllm_specext.training.data.stats import read_token_counts, sizes, statistics

KEY = f"{'a' * 16}-{'b' * 16}-0"
TRAIN = [make_row(range(n), [i % 3 == 1 for i in range(n)], KEY[:-1] + str(n)) for n in range(2, 40)]
VALID = [make_row([2**31 - 1, 0], [False, True], KEY)]


def stats() -> dict[str, Any]:
    return statistics(TRAIN, VALID, {}, {})


def same(a: list[Row], b: list[Row]) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(x.token_ids, y.token_ids) and np.array_equal(x.loss_mask, y.loss_mask) and x.key == y.key
        for x, y in zip(a, b, strict=True)
    )


def test_what_was_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "ROWS_AT_ONCE", 7)
    write_data(tmp_path / "data", TRAIN, VALID, stats())
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == [
        "stats.json",
        "train.parquet",
        "valid.parquet",
    ]
    assert same(list(read_data(tmp_path / "data", "train")), TRAIN)
    (row,) = read_data(tmp_path / "data", "valid")
    assert same([row], VALID)
    assert not same([row.first(1)], VALID)
    assert (row.token_ids.dtype, row.loss_mask.dtype) == (np.int32, bool)
    assert read_stats(tmp_path / "data") == json.loads(json.dumps(stats()))
    schema = parquet.read_schema(tmp_path / "data" / "train.parquet")
    assert [schema.field(name).type for name in ("token_ids", "loss_mask", "key")] == [
        pa.list_(pa.int32()), pa.list_(pa.bool_()), pa.string()
    ]  # fmt: skip
    assert parquet.ParquetFile(tmp_path / "data" / "train.parquet").num_row_groups == 6


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    for name, rows in (("a", TRAIN), ("b", TRAIN), ("c", [*TRAIN[:-1], TRAIN[-1].first(3)])):
        write_data(tmp_path / name, rows, VALID, stats())
    first, second, other = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("a", "b", "c")
    )
    assert first == second != other


def test_data_of_a_run_that_was_killed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path, TRAIN, VALID, stats())

    def killed(path: Path, rows: Any) -> None:
        if path.name == "valid.parquet":
            raise KeyboardInterrupt

    monkeypatch.setattr(written, "_write_rows", killed)
    with pytest.raises(KeyboardInterrupt):
        write_data(tmp_path, TRAIN, VALID, stats())
    with pytest.raises(ConfigurationError, match=r"has no stats.json, so its data are not complete\."):
        list(read_data(tmp_path, "train"))


def damaged(path: Path, name: str, content: bytes) -> None:
    (path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("stats.json", b"{", r"stats.json' cannot be read \(JSONDecodeError\)\."),
        ("stats.json", b"\xff", r"stats.json' cannot be read \(UnicodeDecodeError\)\."),
        ("stats.json", b"[]", r"stats.json' is not of prepared data; expected the format "),
        ("stats.json", b" " * (written.MOST_BYTES + 1), r"stats.json' is not of prepared data; expected the format "),
        ("train.parquet", b"PAR1", r"train.parquet' cannot be read \(ArrowInvalid\)\."),
    ],
)
def test_what_is_damaged_is_refused(name: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    write_data(tmp_path, TRAIN, VALID, stats())
    damaged(tmp_path, name, content)
    with pytest.raises(ConfigurationError, match=sentence):
        list(read_data(tmp_path, "train"))


def test_other_columns_and_other_numbers_of_rows_are_refused(tmp_path: Path) -> None:
    write_data(tmp_path, TRAIN, VALID, stats())
    (tmp_path / "train.parquet").write_bytes((tmp_path / "valid.parquet").read_bytes())
    with pytest.raises(ConfigurationError, match=r"train.parquet' has 1 rows, but stats.json says 38\."):
        list(read_data(tmp_path, "train"))
    parquet.write_table(pa.table({"token_ids": [[1]], "text": ["a"]}), tmp_path / "train.parquet")
    with pytest.raises(
        ConfigurationError, match="has the columns token_ids, text; expected token_ids, loss_mask and key"
    ):
        list(read_data(tmp_path, "train"))


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"cannot be written to '.*data' \(File exists\)\."):
        write_data(tmp_path / "data", TRAIN, VALID, stats())


def test_figures_are_those_of_the_rows() -> None:
    rows = [make_row([5] * n, [True] * n, KEY) for n in (1, 2, 3, 4, 5, 64, 65)]
    assert sizes(rows) == {
        "rows": 7,
        "tokens": 144,
        "loss_tokens": 144,
        "lengths": {"1": 1, "2": 1, "4": 2, "8": 1, "64": 1, "128": 1},
    }
    assert sizes([]) == {"rows": 0, "tokens": 0, "loss_tokens": 0, "lengths": {}}


def test_a_draft_vocabulary_can_be_made_of_the_counts() -> None:
    rows = [make_row([5, 7, 7, 9], [False, True, True, True], KEY), make_row([9, 9], [True, True], KEY)]
    counts = read_token_counts(json.loads(json.dumps(statistics(rows, VALID, {}, {}))))
    assert counts == {7: 2, 9: 3}
    assert ordered(counts, [0]) == [0, 9, 7]
    assert coverage([0, 9, 7], counts) == [0, 0, 0.6, 1]
