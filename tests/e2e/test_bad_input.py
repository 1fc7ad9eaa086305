"""Whatever is wrong with a launch is said at start, in one sentence that names it; nobody has to read a traceback."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vllm_specext.demo.server import ENVIRONMENT, GRIFFIN_CHAIN, TARGET
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import read_shape

Edit = Callable[[Path], None]
WEIGHTS = "model.safetensors"


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Edit:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return edit


def halve_hidden_size(folder: Path) -> None:
    """As a sound drafter for another target would be."""
    shape = read_shape(folder)
    narrow = replace(shape, hidden_size=shape.hidden_size // 2)
    save_file({name: torch.zeros(sizes) for name, sizes in narrow.tensor_shapes().items()}, folder / WEIGHTS)


def shrink_vocabulary(tensors: dict[str, torch.Tensor]) -> None:
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"][:-8].contiguous()


def drop_fusion_bias(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["fc.fc.bias"]


def misshape_fusion(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.fc.weight"] = tensors["fc.fc.weight"][:, :-2].contiguous()


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


DRAFTERS: dict[str, tuple[Edit, list[str]]] = {
    "half the hidden size": (halve_hidden_size, ["hidden size 128", "256"]),
    "another vocabulary": (edit_tensors(shrink_vocabulary), ["2040", "2048", "vocabulary"]),
    "a missing tensor": (edit_tensors(drop_fusion_bias), ["fc.fc.bias"]),
    "a misshapen tensor": (edit_tensors(misshape_fusion), ["fc.fc.weight", "[256, 510]", "[256, 512]"]),
    "a truncated file": (truncate, [WEIGHTS, "truncated"]),
    "a truncated file as released": (truncate_released_format, ["pytorch_model.bin", "truncated"]),
    "no weights": (remove(WEIGHTS), [WEIGHTS, "pytorch_model.bin"]),
    "no configuration": (remove("config.json"), ["config.json"]),
}

KEYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown method": ({"method": "grifin"}, ["'method'", "'grifin'", "griffin"]),
    "unknown key": ({"tree_topk": 1}, ["'tree_topk'", "tree_top_k"]),
    "number as text": ({"num_speculative_tokens": "four"}, ["'num_speculative_tokens'", "'four'"]),
    "fraction": ({"num_speculative_tokens": 2.5}, ["'num_speculative_tokens'", "2.5"]),
    "negative length": ({"num_speculative_tokens": -1}, ["'num_speculative_tokens'", "-1"]),
    "no length": ({"num_speculative_tokens": 0}, ["'num_speculative_tokens'", "0"]),
    "negative width": ({"tree_top_k": -1}, ["'tree_top_k'", "-1"]),
    "overlapping schedule": (
        {"num_speculative_tokens_per_batch_size": [[1, 4, 4], [3, 8, 2]]},
        ["'num_speculative_tokens_per_batch_size'", "[3, 8, 2]", "non-overlapping"],
    ),
    "schedule above the length": (
        {"num_speculative_tokens_per_batch_size": [[1, 4, 5]]},
        ["'num_speculative_tokens_per_batch_size'", "[1, 4, 5]", "at most num_speculative_tokens, 4"],
    ),
    "more nodes than the tree proposes": (
        {"num_speculative_tokens": 21, "tree_depth": 2, "tree_top_k": 4},
        ["'num_speculative_tokens' is 21", "at most 20 are allowed", "larger tree_depth or tree_top_k"],
    ),
    "missing folder": ({"model": "./no-such-drafter"}, ["'model'", "./no-such-drafter"]),
    "no drafter": ({"model": ""}, ["'model'"]),
}

LAUNCHES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "sharded sampling": ({"enable_batch_sharded_sampling": True}, ["--enable-batch-sharded-sampling"]),
    "adapters of every module": ({"enable_lora": True}, ["--enable-lora", "--lora-target-modules", "lm_head"]),
    "pipeline parallel": ({"pipeline_parallel_size": 2}, ["--pipeline-parallel-size", "griffin"]),
    "KV connector": (
        {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
        ["KV connector"],
    ),
    "a draft longer than a step": ({"max_num_batched_tokens": 4}, ["--max-num-batched-tokens", "at most 3"]),
    "a draft longer than a sequence": ({"max_model_len": 5}, ["--max-model-len", "at most 3"]),
}


def refusal(speculative: dict[str, Any], launch: dict[str, Any] | None = None) -> str:
    """The message of the ``ConfigurationError`` that building vLLM's configuration raises."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = {"model": str(TARGET), "max_model_len": 256, "speculative_config": speculative, **(launch or {})}
    if isinstance(arguments.get("kv_transfer_config"), dict):
        from vllm.config import KVTransferConfig

        arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
    with pytest.raises(ConfigurationError) as raised:
        EngineArgs(**arguments).create_engine_config()
    return str(raised.value)


def assert_one_sentence(message: str, fragments: list[str]) -> None:
    assert message.endswith(".")
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def copy_of_drafter(folder: Path, edit: Edit) -> dict[str, Any]:
    shutil.copytree(GRIFFIN_CHAIN["model"], folder / "drafter")
    edit(folder / "drafter")
    return GRIFFIN_CHAIN | {"model": str(folder / "drafter")}


def test_the_unedited_drafter_is_accepted() -> None:
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(model=str(TARGET), max_model_len=256, speculative_config=GRIFFIN_CHAIN).create_engine_config()
    assert config.speculative_config.method == "griffin"


@pytest.mark.parametrize("case", DRAFTERS)
def test_an_unfit_drafter_is_refused(case: str, tmp_path: Path) -> None:
    edit, fragments = DRAFTERS[case]
    assert_one_sentence(refusal(copy_of_drafter(tmp_path, edit)), fragments)


@pytest.mark.parametrize("case", KEYS)
def test_a_bad_key_or_value_is_refused(case: str) -> None:
    keys, fragments = KEYS[case]
    assert_one_sentence(refusal(GRIFFIN_CHAIN | keys), fragments)


@pytest.mark.parametrize("case", LAUNCHES)
def test_an_unsupported_combination_is_refused(case: str) -> None:
    launch, fragments = LAUNCHES[case]
    assert_one_sentence(refusal(GRIFFIN_CHAIN, launch), fragments)


def test_a_tree_over_a_quantised_cache_is_refused_with_the_way_out() -> None:
    message = refusal(GRIFFIN_CHAIN | {"num_speculative_tokens": 24, "tree_top_k": 4}, {"kv_cache_dtype": "fp8"})
    assert_one_sentence(message, ["draft trees", "--kv-cache-dtype", "tree_top_k 1"])


def serve(speculative: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "vllm_specext", "serve", str(TARGET), "--max-model-len=256"),
            *(f"--speculative-config={json.dumps(speculative)}", *arguments),
        ],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    "case", ["unknown method", "more nodes than the tree proposes", "a truncated file", "pipeline parallel"]
)
def test_the_command_ends_with_the_sentence_and_no_traceback(case: str, tmp_path: Path) -> None:
    if case in DRAFTERS:
        edit, fragments = DRAFTERS[case]
        done = serve(copy_of_drafter(tmp_path, edit))
    elif case in KEYS:
        keys, fragments = KEYS[case]
        done = serve(GRIFFIN_CHAIN | keys)
    else:
        fragments = LAUNCHES[case][1]
        done = serve(GRIFFIN_CHAIN, "--pipeline-parallel-size=2")
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr[-2000:]
    assert_one_sentence(errors[0], fragments)
