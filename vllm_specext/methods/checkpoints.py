"""Drafters' checkpoints on disk, whatever the method: names, shapes and values of files that may be damaged.

A checkpoint is a folder with ``config.json`` and ``model.safetensors`` or, as many are released,
``pytorch_model.bin``. Whatever is wrong with the files becomes a `ConfigurationError` that names the file and the
tensor or key; nothing in a file is ever executed.
"""

import json
import math
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.layers import RopeScaling, Rotary

SAFETENSORS = "model.safetensors"
BIN = "pytorch_model.bin"
MAX_DIMENSION = 2**24
"""No real vocabulary or width comes near; larger numbers are damage."""

MAX_CONFIG_BYTES = 2**24
"""The largest ``config.json`` that is read; real ones have a few thousand bytes."""

MAX_ROPE_FACTOR = 1024
"""The largest factor of a rotary scaling that is accepted; real ones end at 64. The rotary table is as many times the
context's length."""

Shapes = dict[str, tuple[int, ...]]
"""Shapes of tensors, by name."""

FLOAT = "floating-point"
"""All types of numbers that a weight may have, for `Header`."""

_DTYPES = dict.fromkeys(("F64", "F32", "F16", "BF16"), FLOAT) | {"I64": "int64", "BOOL": "bool"}
"""Types of numbers by the names that safetensors has for them."""

DRAFT_VOCABULARY = {"d2t": "int64", "t2d": "bool"}
"""Tensors that say which of the target's tokens a drafter scores, with their types, as EAGLE-3 has them. The second
says nothing that the first does not, and is never read."""

_CHECKED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types whose values are looked at; the numbers of quantised tensors are not what they stand for."""


@dataclass(frozen=True)
class Header:
    """A tensor's shape and type, which a file has before the values."""

    shape: tuple[int, ...]
    dtype: str
    """`FLOAT`, or the type's name in torch."""


def weights_file(directory: Path) -> Path:
    for name in (SAFETENSORS, BIN):
        if (directory / name).is_file():
            return directory / name
    raise ConfigurationError(f"{directory} has neither {SAFETENSORS} nor {BIN}.")


def tensor_headers(path: Path) -> dict[str, Header]:
    """The headers of all tensors in ``path``, by name; no weight is read."""
    if path.suffix == ".bin":
        found = {name: Header(tuple(x.shape), _dtype(x)) for name, x in _load_bin(path, "meta").items()}
    else:
        try:
            with safe_open(path, framework="pt") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                found = {
                    name: Header(tuple(x.get_shape()), _DTYPES.get(x.get_dtype(), x.get_dtype()))
                    for name, x in slices.items()
                }
        except (SafetensorError, OSError) as error:
            raise _unreadable(path) from error
    return {name: header for name, header in found.items() if not _is_ignored(name)}


def tensor_shapes(path: Path) -> Shapes:
    """The shapes of all weights in ``path``, from the header alone: no weight is read."""
    found = {name: header for name, header in tensor_headers(path).items() if name not in DRAFT_VOCABULARY}
    check_floating(path, found)
    return {name: header.shape for name, header in found.items()}


def check_floating(path: Path, found: dict[str, Header]) -> None:
    for name, header in found.items():
        if header.dtype != FLOAT:
            raise ConfigurationError(f"{path}: tensor {name} does not hold floating-point numbers.")


def load_tensor(path: Path, name: str) -> Tensor:
    """One tensor, on the CPU and in the file's dtype."""
    if path.suffix == ".bin":
        return _load_bin(path, "cpu")[name]
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path) from error
    return tensor


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All weights by name, on the CPU and in the file's dtype."""
    tensors = _load_bin(path, "cpu") if path.name == BIN else _load_safetensors(path)
    return dict(only_weights(finite(path, tensors.items())))


def only_weights(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Those of a drafter's ``tensors`` that its model has parameters for."""
    return (one for one in tensors if not _is_ignored(one[0]) and one[0] not in DRAFT_VOCABULARY)


def finite(place: Path | str, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """``tensors`` as they come, one pass over each; ``ConfigurationError`` at the first with a NaN or an infinity.

    ``place`` is where they come from.
    """
    for name, tensor in tensors:
        # The extremes are NaN where any number is, and cost no memory.
        if tensor.dtype in _CHECKED and tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise ConfigurationError(
                f"{place}: tensor {name} holds NaN or an infinity; all weights of a drafter must be finite numbers."
            )
        yield name, tensor


def check_files(directory: Path, patterns: Iterable[str]) -> None:
    """Refuse files of ``directory`` that fit ``patterns`` and would hang whoever reads them, such as named pipes, and
    safetensors files that are cut short; of those the headers alone are read."""
    for path in sorted({path for pattern in patterns for path in directory.glob(pattern)}):
        _check_regular(path)
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt"):
                    pass
            except (SafetensorError, OSError) as error:
                raise _unreadable(path) from error


def write_files(directory: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """``config.json`` and ``model.safetensors``, the floating-point tensors in ``dtype``."""
    config = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    stored = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, directory / SAFETENSORS, metadata={"format": "pt"})


def check_names(path: Path, kind: str, found: Iterable[str], required: Iterable[str]) -> None:
    """Exactly the ``required`` names; ``kind`` is what the file should have been."""
    found, required = list(found), list(required)
    missing = [name for name in required if name not in found]
    unexpected = sorted(name for name in found if name not in required)
    for problem, names in (("lacks", missing), ("has the unexpected", unexpected)):
        if names:
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            plural = "s" if len(names) > 1 else ""
            raise ConfigurationError(f"{path} is not a {kind} checkpoint: it {problem} tensor{plural} {listed}.")


def check_sizes(path: Path, found: Shapes) -> None:
    for name, sizes in found.items():
        if any(not 1 <= size <= MAX_DIMENSION for size in sizes):
            raise ConfigurationError(
                f"{path}: tensor {name} has shape {list(sizes)}; every size must be in 1..{MAX_DIMENSION}."
            )


def check_shapes(path: Path, found: Shapes, wanted: Shapes) -> None:
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ConfigurationError(f"{path}: tensor {name} has shape {list(found[name])}; expected {list(shape)}.")


def matrix(path: Path, found: Shapes, name: str) -> tuple[int, int]:
    """Rows and columns of a tensor that must be a matrix."""
    shape = found[name]
    if len(shape) != 2:
        raise ConfigurationError(f"{path}: tensor {name} has shape {list(shape)}; expected two dimensions.")
    return shape[0], shape[1]


def kv_and_head_size(path: Path, found: Shapes, attention: str, heads: int) -> tuple[int, int]:
    """Key/value heads, and the size of one head, of the projections under ``attention`` with ``heads`` query heads."""
    q_rows, kv_rows = (matrix(path, found, f"{attention}.{x}_proj.weight")[0] for x in "qk")
    head_dim, rest = divmod(q_rows, heads)
    if rest or head_dim % 2:
        raise ConfigurationError(
            f"{path}: tensor {attention}.q_proj.weight has {q_rows} rows, which num_attention_heads = {heads} of "
            "config.json does not divide into heads of an even size."
        )
    kv_heads, rest = divmod(kv_rows, head_dim)
    if rest or heads % kv_heads:
        raise ConfigurationError(
            f"{path}: tensor {attention}.k_proj.weight has {kv_rows} rows; with {heads} query heads of size "
            f"{head_dim}, expected {head_dim} times a divisor of {heads}."
        )
    return kv_heads, head_dim


def read_config(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise ConfigurationError(f"{directory} is not a directory.")
    path = directory / "config.json"
    if not path.exists():
        raise ConfigurationError(f"{directory} has no config.json.")
    config = read_object(path)
    if not isinstance(kind := config.get("model_type"), str | None):
        raise ConfigurationError(f"{path}: model_type is {kind!r}; expected a text.")
    return config


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file that is there."""
    _check_regular(path)
    if (size := path.stat().st_size) > MAX_CONFIG_BYTES:
        raise ConfigurationError(f"{path} has {size} bytes; at most {MAX_CONFIG_BYTES} are allowed.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON.") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} does not hold a JSON object.")
    return found


def positive(directory: Path, config: dict[str, Any], key: str, kind: type[int] | type[float]) -> Any:
    """``config[key]``, which must be a positive finite number of this ``kind``."""
    value = config.get(key)
    allowed = (int,) if kind is int else (int, float)
    if (
        isinstance(value, bool)
        or not isinstance(value, allowed)
        or not (0 < value <= 2**31)
        or not math.isfinite(value)
    ):
        noun = "a positive integer" if kind is int else "a positive number"
        raise ConfigurationError(f"{directory / 'config.json'}: {key} is {value!r}; expected {noun}.")
    return kind(value)


def read_rotary(
    directory: Path, config: dict[str, Any], kinds: Sequence[str], default_theta: float | None = None
) -> Rotary:
    """The rotary positions that ``config`` describes, at its top or, as newer versions of transformers write it, in
    ``rope_parameters``."""
    theta = {"rope_theta": config.get("rope_theta", default_theta)}
    scaling = None
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise ConfigurationError(f"{directory / 'config.json'}: {key} is {rope!r}; expected a JSON object.")
        scaling = scaling or read_rope_scaling(f"{directory / 'config.json'}: {key}", rope, kinds)
        theta["rope_theta"] = rope.get("rope_theta", theta["rope_theta"])
    return Rotary(positive(directory, theta, "rope_theta", float), scaling)


def read_rope_scaling(place: str, rope: dict[str, Any], kinds: Sequence[str]) -> RopeScaling | None:
    """The scaling in transformers' ``rope``, of one of ``kinds``. Messages name ``place``, where it was found."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in kinds:
        raise ConfigurationError(f"{place} has the type {kind!r}; supported here: {', '.join(map(repr, kinds))}.")
    if kind == "default":
        return None
    keys = ["factor"] if kind == "linear" else [field.name for field in fields(RopeScaling)][1:]
    for key in keys:
        value = rope.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigurationError(f"{place} has {key} = {value!r}; expected a positive number.")
    if rope["factor"] > MAX_ROPE_FACTOR:
        raise ConfigurationError(f"{place} has factor = {rope['factor']!r}; at most {MAX_ROPE_FACTOR} is allowed.")
    scaling = RopeScaling(kind, **{key: rope[key] for key in keys})
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise ConfigurationError(f"{place} has a low_freq_factor that is not below its high_freq_factor.")
    return scaling


def _check_regular(path: Path) -> None:
    """Opening a named pipe waits for its writer, perhaps for ever."""
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is not a regular file.")


def _is_ignored(name: str) -> bool:
    return name.endswith(".rotary_emb.inv_freq")


def _dtype(tensor: Tensor) -> str:
    return FLOAT if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path) from error


def _load_bin(path: Path, device: str) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location=device, weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise ConfigurationError(
            f"{path} is damaged or holds something other than tensors, which is not loaded."
        ) from error
    except Exception as error:  # a damaged archive can fail in any layer of the reader
        raise _unreadable(path) from error
    if not isinstance(loaded, dict) or not all(isinstance(x, Tensor) for x in loaded.values()):
        raise ConfigurationError(f"{path} does not hold a mapping from names to tensors.")
    for name, tensor in loaded.items():
        # One number can stand for any number of them, which become real when somebody copies the tensor.
        if tensor.layout is not torch.strided or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise ConfigurationError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, but the file does not hold so many numbers."
            )
    return {str(name): tensor for name, tensor in loaded.items()}


def _unreadable(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} is truncated or damaged: its tensors cannot be read.")
