"""Checkpoints in the formats that ``vllm-specext convert`` reads, and how it refuses one."""

import json
from pathlib import Path

import pytest
import torch

from tests.unit import eagle_folders as eagle
from tests.unit.eagle_folders import LLAMA, OWN_VOCABULARY, Config, D, Tensors, nested
from tests.unit.test_griffin_checkpoint import SHAPE
from vllm_specext.convert.conversion import convert
from vllm_specext.convert.kinds import Format, To
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import configuration

AUX = "eagle_aux_hidden_state_layer_ids"
PLAIN = LLAMA | OWN_VOCABULARY
FC_NORM: Tensors = {f"fc_norm.{state}.weight": torch.ones(D) for state in range(3)}
INPUT_NORM: Tensors = {"input_norm.weight": torch.ones(3 * D)}


def eagle1() -> Tensors:
    return {name: torch.randn(x.shape).half() for name, x in eagle.eagle1().items()}


CHECKPOINTS: dict[Format, tuple[Config, Tensors]] = {
    Format.EAGLE: (LLAMA, eagle1()),
    Format.GRIFFIN: (configuration(SHAPE), {name: torch.ones(size) for name, size in SHAPE.tensor_shapes().items()}),
    Format.EAGLE3: (LLAMA | OWN_VOCABULARY, eagle.eagle3()),
    Format.SPECULATORS: (nested(norm_before_residual=False), eagle.eagle3("layers.0.")),
}


def write_target(folder: Path) -> str:
    """The configuration of the model that the drafters of ``eagle_folders`` draft for."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return str(folder)


def refusal(folder: Path, to: To, target: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        convert(str(folder), to, target)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def command(*words: str | Path) -> list[str]:
    return ["convert", *map(str, words)]
