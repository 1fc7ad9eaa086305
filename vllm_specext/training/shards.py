"""Rows of text with the target's features on disk: one file for some rows, in which a row is a slice.

A shard is a safetensors file, because that is memory-mapped, knows bfloat16 and holds no code. Its rows lie one after
the other: ``token_ids`` int32 ``[T]``, ``loss_mask`` uint8 ``[T]``, ``features`` ``[T, d]`` and, where there are any,
``aux`` ``[T, n · d]``; ``row_starts`` int64 ``[R + 1]`` says where each begins and where the last ends. The header
says which target the features are of, which text they were made from, and what the rows are called. A file is complete
or absent.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.rows import FeatureRow
from vllm_specext.whole_files import whole

FORMAT = "vllm-specext features 1"
SUFFIX = ".safetensors"

FLOATING = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
"""Types of features, by the names that safetensors has for them."""

DIMENSIONS = {"token_ids": 1, "loss_mask": 1, "row_starts": 1, "features": 2, "aux": 2}
DTYPES = {"token_ids": "I32", "loss_mask": "U8", "row_starts": "I64"}

MOST_TOKENS = 2**27
"""No shard has more: they are meant to have 2^17 or so. Larger numbers are damage."""


@dataclass(frozen=True)
class Shard:
    """A shard that has been looked at: all but the values of its rows is known to be sound."""

    path: Path
    target: str
    """What tells the target apart whose features these are."""
    source: str
    """What tells apart the text and the settings that the rows were made from."""
    keys: tuple[str, ...]
    """The names of the rows."""
    row_starts: tuple[int, ...]
    width: int
    """``d``"""
    aux_width: int
    """``n · d``; 0 without ``aux``."""

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.keys)

    @property
    def tokens(self) -> int:
        return self.row_starts[-1]


@dataclass(frozen=True)
class PackedRows:
    """Rows one after the other, as a shard has them."""

    token_ids: Tensor
    """``[T]`` int32."""
    loss_mask: Tensor
    """``[T]`` uint8."""
    row_starts: Tensor
    """``[R + 1]`` int64: the first is 0, the last ``T``."""
    features: Tensor
    """``[T, d]``"""
    aux: Tensor | None = None
    """``[T, n · d]``"""


def pack(rows: Sequence[FeatureRow]) -> PackedRows:
    """``rows``, of which there is at least one, one after the other."""
    aux = [row.aux for row in rows if row.aux is not None]
    return PackedRows(
        torch.cat([row.token_ids for row in rows]).int(),
        torch.cat([row.loss_mask for row in rows]).to(torch.uint8),
        torch.tensor([0, *(len(row.token_ids) for row in rows)]).cumsum(0),
        torch.cat([row.features for row in rows]),
        torch.cat(aux) if aux else None,
    )


def write_shard(path: Path, rows: PackedRows, keys: Sequence[str], target: str, source: str) -> None:
    """Write ``rows`` with their names ``keys`` to ``path``, with the type that their features have.

    Raises ``ConfigurationError`` for what `read_shard` would refuse, and for a feature that is no finite number.
    """
    tensors = {name: tensor for name, tensor in vars(rows).items() if tensor is not None}
    check_finite(str(path), rows)
    with whole(path) as part:
        save_file(tensors, part, {"format": FORMAT, "target": target, "source": source, "keys": json.dumps(list(keys))})
        read_shard(part, target)


def read_shard(path: Path, target: str | None = None) -> Shard:
    """Look at the shard in ``path``, without reading its rows.

    Raises ``ConfigurationError``, one sentence, for a file that is no shard, not whole, damaged, or of another target
    than ``target``, where one is given.
    """
    with readable(path):
        file = safe_open(path, framework="pt")
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ConfigurationError(
                f"{path} has the format {metadata.get('format')!r}, but a shard of features has {FORMAT!r}."
            )
        found = metadata.get("target", "")
        if target is not None and found != target:
            raise ConfigurationError(
                f"{path} has features of the target {found[:12]!r}, but {target[:12]!r} is asked for; expected the "
                "features of one target."
            )
        shapes = _checked_shapes(path, file)
        starts = file.get_tensor("row_starts")
    tokens = shapes["token_ids"][0]
    if int(starts[0]) != 0 or int(starts[-1]) != tokens or not bool((starts.diff() > 0).all()):
        raise ConfigurationError(
            f"{path}: tensor row_starts does not rise from 0 to the number of tokens, {tokens}, as it has to."
        )
    return Shard(
        path,
        found,
        metadata.get("source", ""),
        _keys(path, metadata.get("keys", ""), len(starts) - 1),
        tuple(starts.tolist()),
        shapes["features"][1],
        shapes.get("aux", (0, 0))[1],
    )


def read_row(shard: Shard, file: Any, row: int) -> FeatureRow:
    """One row of ``shard`` from its open ``file``; ``ConfigurationError`` where a feature is not a finite number."""
    part = slice(shard.row_starts[row], shard.row_starts[row + 1])
    names = ["token_ids", "loss_mask", "features", *(["aux"] if shard.aux_width else [])]
    with readable(shard.path):
        found = FeatureRow(*(file.get_slice(name)[part] for name in names))
    check_finite(f"row {row} of {shard.path}", found)
    return found


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What safetensors cannot read of ``path`` is a ``ConfigurationError``."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as a shard of features ({type(error).__name__}): it is not whole or not one; "
            "delete it and the run's data/stats.json, and the same command makes it again."
        ) from error


def _keys(path: Path, text: str, rows: int) -> tuple[str, ...]:
    try:
        keys = json.loads(text)
    except (ValueError, RecursionError):
        keys = None
    if not isinstance(keys, list) or len(keys) != rows or not all(isinstance(key, str) for key in keys):
        raise ConfigurationError(f"{path} has no names for its {rows} rows, but the header of a shard has.")
    return tuple(keys)


def check_finite(what: str, rows: FeatureRow | PackedRows) -> None:
    """Refuse rows of which a feature is not a finite number."""
    for name, tensor in (("features", rows.features), ("aux", rows.aux)):
        if tensor is not None and not is_finite(tensor):
            raise ConfigurationError(f"{what} has {name} that are not finite numbers; expected finite ones.")


def is_finite(states: Tensor) -> bool:
    """Whether all are finite numbers."""
    # Both ends are NaN where a number is. They take no memory for a mask, and a tenth of a sum's time.
    return not states.numel() or all(bool(torch.isfinite(end)) for end in states.aminmax())


def _checked_shapes(path: Path, file: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors, which are what a shard has to have; the header's sizes are those of the file."""
    names = set(file.keys())
    if names not in (wanted := set(DIMENSIONS), wanted - {"aux"}):
        raise ConfigurationError(
            f"{path} has the tensors {', '.join(sorted(names))}; expected {', '.join(DIMENSIONS)}, of which aux may be "
            "missing."
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        found = file.get_slice(name)
        shape, dtype = tuple(found.get_shape()), found.get_dtype()
        allowed = (DTYPES[name],) if name in DTYPES else tuple(FLOATING)
        if len(shape) != DIMENSIONS[name] or dtype not in allowed or min(shape) < 1 or shape[0] > MOST_TOKENS + 1:
            raise ConfigurationError(
                f"{path}: tensor {name} has shape {list(shape)} and type {dtype}; expected {DIMENSIONS[name]} "
                f"dimensions, no empty one, and the type {' or '.join(allowed)}."
            )
        shapes[name] = shape
    tokens, width = shapes["features"]
    fitting = {
        "token_ids": shapes["token_ids"] == (tokens,),
        "loss_mask": shapes["loss_mask"] == (tokens,),
        "row_starts": 2 <= shapes["row_starts"][0] <= tokens + 1,
        "aux": shapes.get("aux", (tokens,))[0] == tokens and shapes.get("aux", (0, 0))[1] % width == 0,
    }
    for name, fits in fitting.items():
        if not fits:
            raise ConfigurationError(
                f"{path}: tensor {name} has shape {list(shapes[name])}, which does not fit features of shape "
                f"{[tokens, width]}."
            )
    return shapes
