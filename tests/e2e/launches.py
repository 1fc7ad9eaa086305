"""Launches on the bundled models and on damaged copies of them, as far as vLLM's own configuration of the launch."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import EAGLE3_TREE, GRIFFIN_CHAIN, MOA_TREE, TARGET
from vllm_specext.methods.griffin import checkpoint as griffin
from vllm_specext.methods.moa import checkpoint as moa

Edit = Callable[[Path], None]
Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"
SOUND = {"griffin": GRIFFIN_CHAIN, "eagle3-tree": EAGLE3_TREE, "moa": MOA_TREE}
"""Speculative configurations with nothing wrong with them."""


def edit_tensors(change: Callable[[Tensors], object]) -> Edit:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return edit


def edit_config(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def save_zeros(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    save_file({name: torch.zeros(sizes) for name, sizes in shapes.items()}, folder / WEIGHTS)


def halve_hidden_size(folder: Path) -> None:
    """As a sound drafter for another target would be."""
    shape = griffin.read_shape(folder)
    save_zeros(folder, replace(shape, hidden_size=shape.hidden_size // 2).tensor_shapes())


def double_kv_width(folder: Path) -> None:
    """The same: for a target with twice the key/value heads."""
    shape = moa.read_shape(folder)
    lsa = shape.layer_self_attention
    assert lsa is not None
    lsa = replace(lsa, width=2 * lsa.width, head_dim=2 * lsa.head_dim)
    save_zeros(folder, replace(shape, kv_width=2 * shape.kv_width, layer_self_attention=lsa).tensor_shapes())


def resize(name: str, *part: slice) -> Edit:
    """Keep ``part`` of a tensor."""
    return edit_tensors(lambda tensors: tensors.update({name: tensors[name][part].contiguous()}))


def drop(name: str) -> Edit:
    return edit_tensors(lambda tensors: tensors.pop(name))


def truncate(folder: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate((folder / WEIGHTS).stat().st_size // 2)


def truncate_released_format(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with (folder / "pytorch_model.bin").open("r+b") as file:
        file.truncate((folder / "pytorch_model.bin").stat().st_size // 2)


def remove(name: str) -> Edit:
    return lambda folder: (folder / name).unlink()


def make_pipe(name: str) -> Edit:
    """In the place of a file: whoever opens it waits for its writer."""

    def edit(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return edit


def configure(speculative: Any, launch: dict[str, Any] | None = None) -> Any:
    """vLLM's own configuration of the launch."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = {"model": str(TARGET), "max_model_len": 256, "speculative_config": speculative, **(launch or {})}
    if isinstance(arguments.get("kv_transfer_config"), dict):
        from vllm.config import KVTransferConfig

        arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
    return EngineArgs(**arguments).create_engine_config()


def refusal(speculative: Any, launch: dict[str, Any] | None = None) -> str:
    """The message of the ``ConfigurationError`` that building vLLM's configuration raises."""
    with pytest.raises(ConfigurationError) as raised:
        configure(speculative, launch)
    return str(raised.value)


def assert_one_sentence(message: str, fragments: list[str]) -> None:
    assert message.endswith(".")
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def copy_of_drafter(method: str, folder: Path, edit: Edit) -> dict[str, Any]:
    shutil.copytree(SOUND[method]["model"], folder / "drafter")
    edit(folder / "drafter")
    return SOUND[method] | {"model": str(folder / "drafter")}


def copy_of_target(folder: Path, changes: dict[str, Any]) -> str:
    """Without weights, which nobody reads before the configuration stands."""
    shutil.copytree(TARGET, folder / "target", ignore=shutil.ignore_patterns(WEIGHTS))
    edit_config(**changes)(folder / "target")
    return str(folder / "target")
