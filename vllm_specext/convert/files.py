"""A checkpoint as files: what is read of one before its format is known, and how the converted one is written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vllm_specext.methods.checkpoints import (
    DRAFT_VOCABULARY,
    SAFETENSORS,
    Header,
    load_tensor,
    read_config,
    tensor_headers,
)
from vllm_specext.methods.draft_vocabulary import read_checkpoint
from vllm_specext.methods.stock.checkpoint import weight_files


@dataclass(frozen=True)
class Source:
    """A checkpoint that is to be converted."""

    folder: Path
    config: dict[str, Any]
    headers: dict[str, Header]
    """Shapes and types by name, from the files' headers."""
    files: dict[str, Path]
    """The file that each tensor is in."""

    @property
    def place(self) -> str:
        """The name of ``config.json`` for messages."""
        return str(self.folder / "config.json")

    def tensors(self) -> dict[str, Tensor]:
        """All of them by their names in the files, on the CPU, in the files' types."""
        return {name: load_tensor(file, name) for name, file in self.files.items()}

    def draft_vocabulary(self, vocab_size: int) -> dict[str, Tensor]:
        """``d2t`` and ``t2d``, as far as they are there. ``ConfigurationError`` where they do not fit a target with
        ``vocab_size`` tokens."""
        found = {name: self.files[name] for name in DRAFT_VOCABULARY if name in self.files}
        if "d2t" in found:
            read_checkpoint(found["d2t"], vocab_size)
        return {name: load_tensor(file, name) for name, file in found.items()}


@dataclass(frozen=True)
class Converted:
    """A checkpoint that was converted and not yet written."""

    config: dict[str, Any]
    tensors: Mapping[str, Tensor]
    format: str
    """What it is now, for the reader."""
    method: str | None
    """Ours that serves it; ``None`` where ``config.json`` names it."""
    names_target: bool = False
    """Whether ``config.json`` does, so that the checkpoint is served by its own name."""
    left_out: tuple[str, ...] = ()
    """Keys of the source's ``config.json`` that the new format has no place for, and that change nothing."""


def open_source(folder: Path) -> Source:
    """Read ``config.json`` and the headers of all weights. Raises ``ConfigurationError``."""
    config = read_config(folder)
    headers: dict[str, Header] = {}
    files: dict[str, Path] = {}
    for file in weight_files(folder):
        found = tensor_headers(file)
        headers |= found
        files |= dict.fromkeys(found, file)
    return Source(folder, config, headers, files)


def write(folder: Path, converted: Converted) -> None:
    """``model.safetensors``, then ``config.json``, so that a folder that lacks some of it is none that is loaded.

    Tensors keep their types. Raises ``OSError``, after which neither file is there.
    """
    stored: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in converted.tensors.items():
        kept = tensor.contiguous()
        if kept.untyped_storage().data_ptr() in taken:  # the format has no tensors that share memory
            kept = kept.clone()
        taken.add(kept.untyped_storage().data_ptr())
        stored[name] = kept
    weights, config = folder / SAFETENSORS, folder / "config.json"
    try:
        save_file(stored, weights, metadata={"format": "pt"})
        config.write_text(json.dumps(converted.config, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        for path in (weights, config):
            path.unlink(missing_ok=True)
        raise OSError(None, " ".join(str(error).split())) from error
