"""A drafter whose weights hold NaN or an infinity is refused by the tensor's name when the engine loads it."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests import forks
from tests.engine.conftest import CHAIN, ROOMY, moa
from tests.engine.workload import FOREIGN_BPE, GRIFFIN, MOA

DRAFTERS: dict[str, tuple[Path, dict[str, Any], str, float]] = {
    "griffin": (GRIFFIN, CHAIN, "layers.0.self_attn.k_proj.weight", float("nan")),
    "moa": (MOA, moa(4, 1)["speculative_config"], "layer_self_attention.mlp.up_proj.weight", float("inf")),
    "slem": (FOREIGN_BPE, {"method": "slem"}, "model.layers.2.mlp.down_proj.weight", float("-inf")),
}


def load(arguments: dict[str, Any]) -> None:
    """A program that ends as Python ends it."""
    from vllm import LLM

    try:
        LLM(**arguments)
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name == "moa" else pytest.mark.extended) for name in DRAFTERS]
)
def test_the_engine_refuses_the_tensor_by_its_name_in_the_file(method: str, tmp_path: Path) -> None:
    source, options, name, value = DRAFTERS[method]
    drafter = Path(shutil.copytree(source, tmp_path / "drafter"))
    tensors = load_file(drafter / "model.safetensors")
    tensors[name].view(-1)[-3] = value
    save_file(tensors, drafter / "model.safetensors")
    arguments = ROOMY | {"speculative_config": options | {"model": str(drafter)}}
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    streams = tmp_path / "printed"
    function = f"{__name__}:{load.__name__}"
    done = forks.run(function, arguments, environment=environment, folder=tmp_path, streams=streams, seconds=300)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    sentence = f"{drafter}: tensor {name} holds NaN or an infinity; all weights of a drafter must be finite numbers."
    assert [line for line in done.stderr.splitlines() if line.endswith(f"error: {sentence}")], done.stderr[-2000:]
