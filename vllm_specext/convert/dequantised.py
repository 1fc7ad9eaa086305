"""Drafters with quantised weights, in bfloat16: of float8, and of NVFP4 as NVIDIA's Model Optimizer writes it.

Drafters of hidden states have to be unquantised to be served. Their weights become what the quantised numbers stand
for, so that weights differ by the rounding to bfloat16 alone. Activations that were quantised, too, are so no more.

A weight in float8 has one scale, or one for each row. One in NVFP4 has two numbers in a byte, the first in its lower
half, each a sign and one of eight sizes; a scale in float8 for every sixteen of a row, and one scale for all.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specext.convert.files import Converted, Source
from vllm_specext.convert.kinds import Format
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import DRAFT_VOCABULARY, FLOAT, check_sizes, finite, load_tensor

FLOAT8, BYTES = "F8_E4M3", "U8"
"""Types of quantised weights, as safetensors calls them."""
SIZES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""Of numbers with four bits, which are a sign before three of these."""
RUN = 16
"""Numbers of a row with a scale of their own."""
ROWS = 4096
"""Of NVFP4 that are looked at together, of which each number takes some thirty bytes meanwhile."""
SCALE, WHOLE_SCALE = "_scale", "_scale_2"
"""What the names of a weight's scales end with, after the weight's."""
OF_ACTIVATIONS = tuple(f".{of}_scale" for of in ("input", "output", "q", "k", "v", "prob"))
"""Scales of what weights are multiplied by, and of caches, which are not used here."""
OF_INPUTS = ".pre_quant_scale"
"""What a weight's columns were divided by, so that its inputs would have to be multiplied."""
KEYS = ("quantization_config", "compression_config")


def write(source: Source, method: str) -> Converted:
    """The drafter with its own names and keys, but for those of the quantisation; ``method`` is ours that serves it.
    Raises ``ConfigurationError``."""
    types = {name: header.dtype for name, header in source.headers.items() if not _is_scale(name)}
    weights = {name for name, dtype in types.items() if dtype in (FLOAT8, BYTES)}
    tensors = dict(finite(source.folder, _tensors(source, weights)))
    if not weights:
        raise ConfigurationError(
            f"{source.folder} has no weight in float8 or NVFP4, so that nothing is to be converted."
        )
    return Converted(_unquantised(source.config) | {"torch_dtype": "bfloat16"}, tensors, Format.IN_BFLOAT16, method)


def _unquantised(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` without the keys of a quantisation, at its top and in what is in it, and without an earlier type."""
    return {
        key: _unquantised(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in (*KEYS, "dtype")
    }


def _tensors(source: Source, quantised: set[str]) -> Iterator[tuple[str, Tensor]]:
    check_sizes(source.folder, {name: header.shape for name, header in source.headers.items()})
    for name, header in source.headers.items():
        if _is_scale(name):
            continue
        if name.endswith(OF_INPUTS):
            raise _unknown(source.files[name], name, "scales the inputs of a weight")
        if name in quantised:
            yield name, _weight(source, name)
        elif header.dtype == FLOAT or name in DRAFT_VOCABULARY:
            yield name, load_tensor(source.files[name], name)
        else:
            raise _unknown(source.files[name], name, f"holds numbers of type {header.dtype}")


def _weight(source: Source, name: str) -> Tensor:
    """Of float8 or NVFP4, in bfloat16."""
    place = source.files[name]
    if (of_scale := source.headers.get(name + SCALE)) is None:
        raise _unknown(place, name, f"has no scale {name + SCALE}")
    numbers, scale = load_tensor(place, name), load_tensor(source.files[name + SCALE], name + SCALE).float()
    if numbers.dim() != 2:
        raise _unknown(place, name, f"has {numbers.dim()} dimensions")
    rows, columns = numbers.shape
    if source.headers[name].dtype == FLOAT8:
        if of_scale.shape not in ((), (1,), (rows,), (rows, 1)):
            raise _unknown(place, name, f"has a scale of the shape {list(of_scale.shape)}")
        return (numbers.float() * scale.reshape(-1, 1)).to(torch.bfloat16)
    whole = source.headers.get(name + WHOLE_SCALE)
    if of_scale.shape != (rows, 2 * columns / RUN) or whole is None or whole.shape not in ((), (1,)):
        raise _unknown(
            place, name, f"has scales of the shapes {list(of_scale.shape)} and {whole and list(whole.shape)}"
        )
    factor = load_tensor(source.files[name + WHOLE_SCALE], name + WHOLE_SCALE).float()
    parts = zip(numbers.split(ROWS), scale.split(ROWS), strict=True)
    return torch.cat([(_of_nvfp4(*part) * factor).to(torch.bfloat16) for part in parts])


def _of_nvfp4(numbers: Tensor, scale: Tensor) -> Tensor:
    halves = torch.stack((numbers & 15, numbers >> 4), dim=2).flatten(1).int()
    values = SIZES[halves & 7] * torch.where(halves > 7, -1.0, 1.0)
    return (values.unflatten(1, (-1, RUN)) * scale[..., None]).flatten(1)


def _is_scale(name: str) -> bool:
    return name.endswith((".weight" + SCALE, ".weight" + WHOLE_SCALE, *OF_ACTIVATIONS))


def _unknown(place: Path, name: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{place}: tensor {name} {what}; what is read are matrices in float8 with one scale or one for each row, and "
        "in NVFP4 as the Model Optimizer writes them."
    )
