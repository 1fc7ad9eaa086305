"""Modules on disk, as vLLM's classes read them: in the target's own files, or alone in a folder with its
``config.json``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import (
    Header,
    check_floating,
    check_names,
    check_shapes,
    finite,
    load_tensor,
    tensor_headers,
    write_files,
)
from vllm_specext.training.mtp.experts import apart, are_together, joined
from vllm_specext.training.mtp.layouts import Layout
from vllm_specext.training.mtp.model import ModuleShape, MtpModule

KIND = "multi-token prediction module"
IN_LAYER = {"self_attn.input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
"""Names of the layer's parts that are others in files."""
QUERIES, GATES = "self_attn.q_proj.weight", "self_attn.gate_proj.weight"


def of_the_module(names: Iterable[str], layout: Layout) -> list[str]:
    """Those of ``names`` of tensors in files that are a module's."""
    beginnings = (layout.layer, *(f"{name}." for name in _outside(layout).values()))
    return [name for name in names if name.startswith(beginnings)]


def locate(place: Path, files: Sequence[Path], shape: ModuleShape) -> dict[str, Path]:
    """Of the module in ``files`` of the folder ``place``, which may be all of the target's: the file of each tensor.

    Raises ``ConfigurationError`` where there is none of this ``shape``.
    """
    found: dict[str, tuple[Path, Header]] = {}
    for file in files:
        headers = tensor_headers(file)
        found |= {name: (file, headers[name]) for name in of_the_module(headers, shape.layout)}
    if not found:
        raise ConfigurationError(f"{place} has no {KIND}: no name of its tensors begins with {shape.layout.layer!r}.")
    wanted = file_shapes(as_in(found, shape))
    check_names(place, KIND, found, wanted)
    check_floating(place, {name: header for name, (_, header) in found.items()})
    check_shapes(place, {name: header.shape for name, (_, header) in found.items()}, wanted)
    return {name: file for name, (file, _) in found.items()}


def read_tensors(place: Path, files: Sequence[Path], shape: ModuleShape) -> dict[str, Tensor]:
    """All tensors that an `MtpModule` has, by name, in float32, from where `locate` finds them."""
    found = locate(place, files, shape)
    read = finite(place, ((name, load_tensor(file, name)) for name, file in found.items()))
    return _of_files({name: tensor.float() for name, tensor in read}, shape)


def write_checkpoint(directory: Path, shape: ModuleShape, state_dict: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write a module to ``directory`` as ``config.json`` and ``model.safetensors``, weights in ``dtype``."""
    config = {key: value for key, value in shape.config.items() if key != "dtype"}
    write_files(directory, config, to_files(state_dict, shape), dtype)


def to_files(state_dict: Mapping[str, Tensor], shape: ModuleShape) -> dict[str, Tensor]:
    """A module's tensors by the names that files have. What ``_of_files`` brings back."""
    layout, made = shape.layout, dict(state_dict)
    if layout.gated:
        queries, gates = (made.pop(name).view(shape.heads, shape.head_dim, -1) for name in (QUERIES, GATES))
        made[QUERIES] = torch.cat((queries, gates), dim=1).flatten(0, 1)
    named = {_in_files(name, layout): tensor - _more(name, layout) for name, tensor in made.items()}
    return named if shape.experts is None or shape.experts.together else apart(named, layout.layer)


def as_in(names: Iterable[str], shape: ModuleShape) -> ModuleShape:
    """``shape`` with experts in the way in which tensors of these ``names`` have them."""
    experts = shape.experts and replace(shape.experts, together=are_together(names))
    return replace(shape, experts=experts)


def file_shapes(shape: ModuleShape) -> dict[str, tuple[int, ...]]:
    """Of all tensors in a file, by name."""
    with torch.device("meta"):
        state_dict = MtpModule(shape).state_dict()
        return {name: tuple(tensor.shape) for name, tensor in to_files(state_dict, shape).items()}


def _of_files(tensors: Mapping[str, Tensor], shape: ModuleShape) -> dict[str, Tensor]:
    layout, experts = shape.layout, as_in(tensors, shape).experts
    if experts is not None and not experts.together:
        tensors = joined(tensors, layout.layer, experts.count)
    with torch.device("meta"):
        names = MtpModule(shape).state_dict().keys()
    own = {name: tensors[_in_files(name, layout)] + _more(name, layout) for name in names if name != GATES}
    if layout.gated:
        of_heads = own[QUERIES].view(shape.heads, 2, shape.head_dim, -1)
        own[QUERIES], own[GATES] = (of_heads[:, part].flatten(0, 1) for part in (0, 1))
    return own


def _in_files(name: str, layout: Layout) -> str:
    part, _, kind = name.rpartition(".")
    outside = _outside(layout)
    return f"{outside[part]}.{kind}" if part in outside else f"{layout.layer}{IN_LAYER.get(part, part)}.{kind}"


def _outside(layout: Layout) -> dict[str, str]:
    """The parts around the layer, and their names in files."""
    return {
        "fc": layout.fc,
        "embedding_norm": layout.of_embedding,
        "hidden_norm": layout.of_hidden,
        "norm": layout.last,
    }


def _more(name: str, layout: Layout) -> float:
    """What a norm multiplies by, beyond its weight in files."""
    return float(layout.one_more and name.endswith("norm.weight"))
