"""Prepared data on disk: ``train.parquet``, ``valid.parquet`` and ``stats.json``.

``stats.json`` is written last and removed first: data without it are not complete and are not read. The same rows give
the same bytes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.stats import FORMAT
from vllm_specext.whole_files import whole

if TYPE_CHECKING:
    import pyarrow as pa

Part = Literal["train", "valid"]

STATS = "stats.json"
ROWS_AT_ONCE = 1024
"""Rows of a group in the file. All of a column's group is read at once."""

MOST_BYTES = 2**26
"""``stats.json`` is smaller than this. A vocabulary of a million tokens takes 2^24."""


def write_data(folder: Path, train: Sequence[Row], valid: Sequence[Row], stats: Mapping[str, Any]) -> None:
    """Replace the data in ``folder``. ``ConfigurationError`` where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STATS).unlink(missing_ok=True)
        for part, rows in (("train", train), ("valid", valid)):
            _write_rows(folder / f"{part}.parquet", rows)
        with whole(folder / STATS) as path:
            path.write_text(json.dumps(stats, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the data cannot be written to {str(folder)!r} ({error.strerror or type(error).__name__})."
        ) from None


def read_stats(folder: Path) -> dict[str, Any]:
    """What ``stats.json`` says. ``ConfigurationError`` where there are no complete data in ``folder``."""
    path = folder / STATS
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        stats = json.loads(content) if len(content) <= MOST_BYTES else None
    except FileNotFoundError:
        raise ConfigurationError(f"{str(folder)!r} has no {STATS}, so its data are not complete.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read ({type(error).__name__}).") from None
    if not isinstance(stats, dict) or stats.get("format") != FORMAT:
        raise ConfigurationError(f"{str(path)!r} is not of prepared data; expected the format {FORMAT!r}.")
    return stats


def read_data(folder: Path, part: Part) -> Iterator[Row]:
    """The rows of one part. ``ConfigurationError`` where they are not what ``stats.json`` says."""
    import pyarrow as pa
    from pyarrow import parquet

    expected = read_stats(folder)[part]["rows"]
    path = folder / f"{part}.parquet"
    found = 0
    try:
        with parquet.ParquetFile(path) as file:
            if file.schema_arrow.remove_metadata() != _schema():
                raise ConfigurationError(
                    f"{str(path)!r} has the columns {', '.join(file.schema_arrow.names)}; expected token_ids, "
                    "loss_mask and key of prepared data."
                )
            for batch in file.iter_batches(ROWS_AT_ONCE):
                for row in _rows(batch):
                    found += 1
                    yield row
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read ({type(error).__name__}).") from None
    if found != expected:
        raise ConfigurationError(f"{str(path)!r} has {found} rows, but {STATS} says {expected}.")


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    from pyarrow import parquet

    with whole(path) as part, parquet.ParquetWriter(part, _schema(), compression="zstd") as writer:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            writer.write_batch(_batch(rows[start : start + ROWS_AT_ONCE]), row_group_size=ROWS_AT_ONCE)


def _schema() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([("token_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.bool_())), ("key", pa.string())])


def _batch(rows: Sequence[Row]) -> "pa.RecordBatch":
    import pyarrow as pa

    starts = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    columns = [
        pa.ListArray.from_arrays(starts, pa.array(np.concatenate(values)))
        for values in ([row.token_ids for row in rows], [row.loss_mask for row in rows])
    ]
    return pa.record_batch([*columns, pa.array([row.key for row in rows])], schema=_schema())


def _rows(batch: "pa.RecordBatch") -> Iterator[Row]:
    ids, masks, keys = (batch.column(name) for name in ("token_ids", "loss_mask", "key"))
    for i in range(len(batch)):
        # Booleans are bits in Arrow, so they are copied; a row of ids is copied so that it does not keep its group.
        yield Row(ids[i].values.to_numpy().copy(), masks[i].values.to_numpy(zero_copy_only=False), keys[i].as_py())
