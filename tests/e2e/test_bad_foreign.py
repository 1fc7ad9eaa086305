"""What drafters with a foreign tokenizer cannot work with is said at start, in one sentence, on vLLM's own
configuration of the launch."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launches import (
    WEIGHTS,
    Edit,
    assert_one_sentence,
    configure,
    copy_of_target,
    edit_config,
    make_pipe,
    refusal,
    truncate,
)
from vllm_specext.measure.bundled import MODELS, SLEM, SLRS, TLI

METHODS = {"slem": SLEM, "tli": TLI, "slrs": SLRS}
KEYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no drafter": ({"method": "slem"}, ["'model' is missing for method 'slem'"]),
    "a place that is not there": (SLEM | {"model": "./nowhere"}, ["'model' is './nowhere'", "neither a directory"]),
    "a confidence in per cent": (SLEM | {"draft_confidence": 40}, ["'draft_confidence' is 40", "less than or equal"]),
    "no window": (SLEM | {"slem_lookbehind": 0}, ["'slem_lookbehind' is 0", "greater than or equal to 1"]),
    "a tree": (TLI | {"tree_top_k": 4}, ["'tree_top_k' is unknown for method 'tli'", "draft_sample_method"]),
    "a way to draw": (TLI | {"draft_sample_method": "gumbel"}, ["'draft_sample_method' is 'gumbel'", "'greedy'"]),
    "greedy drafts": (SLRS | {"draft_sample_method": "greedy"}, ["'draft_sample_method' is unknown for method 'slrs'"]),
    "many words": (
        SLRS | {"model": "WIDE"},
        ["method 'slrs' is for drafters that write bytes or at most 4096 tokens", "4996", "use 'slem'"],
    ),
    "none in common": (TLI | {"model": "STRANGE"}, ["shares no token with the target", "use 'slem'"]),
    "no tokenizer": (SLEM | {"model": "MUTE"}, ["tokenizer of", "cannot be loaded"]),
    "a list of model types": (SLEM | {"model": "LISTED"}, ["config.json: model_type is ['x']"]),
}
LAUNCHES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "pipeline parallel": ({"pipeline_parallel_size": 2}, ["--pipeline-parallel-size", "stages"]),
    "no tokenizers": ({"skip_tokenizer_init": True}, ["--skip-tokenizer-init"]),
}


def drafter(folder: Path, kind: str) -> str:
    """The bundled one with another tokenizer; without weights, which nobody reads before the configuration stands."""
    copy = folder / kind
    shutil.copytree(MODELS / "foreign_bpe", copy, ignore=shutil.ignore_patterns("*.safetensors"))
    if kind == "MUTE":
        for file in copy.glob("*token*"):
            file.unlink()
        return str(copy)
    if kind == "LISTED":
        edit_config(model_type=["x"])(copy)
        return str(copy)
    tokenizer = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    if kind == "WIDE":
        size = 5200
        vocabulary |= {f"word{number}": number for number in range(len(vocabulary), 5000)}
    else:
        size = 300
        tokenizer["model"]["vocab"] = {f"zzz{number}zzz": number for number in range(200)}
        tokenizer["model"]["merges"] = []
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    return str(copy)


@pytest.mark.parametrize("method", METHODS)
def test_the_bundled_pairs_are_accepted(method: str, tmp_path: Path) -> None:
    config = configure(METHODS[method], {"model": copy_of_target(tmp_path, {})}).speculative_config
    assert config.method == method
    assert config.draft_model_config.max_model_len > config.target_model_config.max_model_len


@pytest.mark.parametrize("case", KEYS)
def test_a_bad_key_or_drafter_is_refused(case: str, tmp_path: Path) -> None:
    given, fragments = KEYS[case]
    if given.get("model") in ("WIDE", "STRANGE", "MUTE", "LISTED"):
        given = given | {"model": drafter(tmp_path, given["model"])}
    assert_one_sentence(refusal(given), fragments)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("edit", "fragments"),
    [
        (truncate, [WEIGHTS, "truncated"]),
        (make_pipe("config.json"), ["config.json is not a regular file"]),
        (make_pipe("tokenizer.json"), ["tokenizer.json is not a regular file"]),
    ],
    ids=["a truncated file", "a pipe for a configuration", "a pipe for a tokenizer"],
)
def test_damaged_files_are_refused_before_the_engine_starts(
    method: str, edit: Edit, fragments: list[str], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(METHODS[method]["model"], tmp_path / "drafter"))
    edit(copy)
    assert_one_sentence(refusal(METHODS[method] | {"model": str(copy)}), fragments)


@pytest.mark.parametrize("case", LAUNCHES)
def test_an_unsupported_combination_is_refused(case: str) -> None:
    launch, fragments = LAUNCHES[case]
    assert_one_sentence(refusal(SLEM, launch), fragments)


def test_a_drafter_of_another_kind_is_refused(tmp_path: Path) -> None:
    mamba = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "state_size": 16, "conv_kernel": 4}
    shutil.copytree(MODELS / "foreign_bpe", tmp_path / "mamba", ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = {"vocab_size": 1024, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256, "expand": 2}
    others = {"time_step_rank": 8, "use_conv_bias": True, "use_bias": False, "hidden_act": "silu"}
    (tmp_path / "mamba" / "config.json").write_text(json.dumps(mamba | sizes | others))
    assert_one_sentence(refusal(SLEM | {"model": str(tmp_path / "mamba")}), ["recurrent state cannot be rolled back"])
