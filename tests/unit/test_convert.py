"""What each checkpoint is taken for by ``vllm-specext convert``, and what becomes of GRIFFIN's, MoA's and EAGLE's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.unit import eagle_folders as eagle
from tests.unit.conversions import CHECKPOINTS, command, refusal
from tests.unit.eagle_folders import LLAMA, Config, Tensors, nested
from tests.unit.test_griffin_checkpoint import SHAPE
from vllm_specext.cli import app
from vllm_specext.convert.formats import recognise
from vllm_specext.convert.kinds import TAKES, Format, To
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.methods.draft_vocabulary import read_checkpoint
from vllm_specext.methods.griffin.checkpoint import read_shape, read_tensors
from vllm_specext.methods.moa import checkpoint as moa
from vllm_specext.served_drafter import served_keys

GRIFFIN, MOA, EAGLE3 = (MODELS / name for name in ("griffin", "moa", "eagle3"))
LAYER = {"layers.0.self_attn.q_proj.weight": torch.zeros(16, 16)}
DFLASH: Tensors = {
    **{f"layers.{layer}.self_attn.q_proj.weight": torch.zeros(16, 16) for layer in range(2)},
    "fc.weight": torch.zeros(16, 5 * 16),
    "hidden_norm.weight": torch.ones(16),
    "norm.weight": torch.ones(16),
}
"""Not all of its tensors; no more is looked at."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "250")
    return CliRunner()


# What a checkpoint is


@pytest.mark.parametrize("found", CHECKPOINTS)
def test_a_format_is_recognised_by_names(found: Format) -> None:
    config, tensors = CHECKPOINTS[found]
    assert recognise("here", config, tensors) is found


@pytest.mark.parametrize(
    ("folder", "found"), [(GRIFFIN, Format.GRIFFIN), (MOA, Format.MOA), (EAGLE3, Format.EAGLE3)], ids=str
)
def test_the_bundled_drafters_are_recognised_though_they_name_their_target(folder: Path, found: Format) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config.keys() >= served_keys("griffin", "").keys()
    assert recognise("here", config, load_file(folder / "model.safetensors")) is found


@pytest.mark.parametrize("found", CHECKPOINTS)
def test_one_tensor_less_is_still_the_same_format_or_says_what_is_missing(found: Format) -> None:
    config, tensors = CHECKPOINTS[found]
    for name in tensors:
        others = tensors.keys() - {name}
        if found is Format.EAGLE and name == "fc.weight":
            with pytest.raises(ConfigurationError, match=r"is fc\.weight \(EAGLE\)"):
                recognise("here", config, others)
        else:
            assert recognise("here", config, others) is found


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, DFLASH),
        (LLAMA, DFLASH),
        (nested(speculators_model_type="dflash"), DFLASH),
        (nested(speculators_model_type="dflash2"), DFLASH),
        (nested(speculators_model_type="dspark"), LAYER),
        ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}, LAYER),
        ({"architectures": ["DFlashDraftModel"]}, LAYER),
    ],
)
def test_dflash_is_refused_and_what_serves_it_is_said(config: Config, tensors: Tensors, tmp_path: Path) -> None:
    folder = eagle.write(tmp_path / "drafter", config, tensors)
    for to in set(To) - {To.BFLOAT16}:
        message = refusal(folder, to, str(TARGET))
        assert message.startswith(f"{folder} is a DFlash or DSpark checkpoint")
        assert "vLLM serves it as it is, with method dflash or dspark" in message


@pytest.mark.parametrize("kind", ["peagle", "mtp", None, ["eagle3"]])
def test_another_type_of_speculators_is_named(kind: Any) -> None:
    config = nested(speculators_model_type=kind)
    with pytest.raises(ConfigurationError, match=r"speculators_model_type is .*; of the types of speculators, only"):
        recognise("here", config, eagle.eagle3("layers.0."))


@pytest.mark.parametrize("names", [[], ["model.layers.0.mlp.up_proj.weight"], [f"w{i}" for i in range(5)]])
def test_what_is_no_drafter_is_refused_with_its_first_tensors(names: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=f"none of its {len(names)} tensors") as caught:
        recognise("here", LLAMA, names)
    assert all(name in str(caught.value) for name in names[:3])


@pytest.mark.parametrize("to", To)
@pytest.mark.parametrize("found", CHECKPOINTS)
def test_a_way_that_does_not_exist_says_what_serves_the_checkpoint(found: Format, to: To, tmp_path: Path) -> None:
    if found in TAKES[to]:
        return
    folder = eagle.write(tmp_path / "drafter", *CHECKPOINTS[found])
    message = refusal(folder, to, str(TARGET))
    assert message.startswith(f"{folder} is a checkpoint of {found}, which method")
    assert f"--to {to} takes {TAKES[to][0]}" in message


# GRIFFIN and MoA


def test_eagle_becomes_griffin(run: CliRunner, tmp_path: Path) -> None:
    source = eagle.write(tmp_path / "eagle", *CHECKPOINTS[Format.EAGLE])
    eagle.as_bin(source)
    done = run.invoke(app, command(source, tmp_path / "new", "--to", "griffin"))
    assert done.exit_code == 0, done.output
    read, written, next_one = done.output.splitlines()
    assert read == f"read {source}: EAGLE-1, EAGLE-2 or HASS, 10 tensors"
    assert written.startswith(f"written {tmp_path / 'new'}: GRIFFIN, 15 tensors, ")
    keys = json.dumps({"method": "griffin", "model": str(tmp_path / "new")})
    assert next_one == f"vllm serve TARGET --speculative-config '{keys}'"
    assert read_shape(tmp_path / "new") == read_shape(source)
    wanted, found = read_tensors(source), read_tensors(tmp_path / "new")
    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[name], x) and found[name].dtype == torch.float16 for name, x in wanted.items())
    assert json.loads((tmp_path / "new" / "config.json").read_text())["torch_dtype"] == "float16"
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["config.json", "model.safetensors"]


def test_a_released_griffin_drafter_becomes_safetensors(tmp_path: Path, run: CliRunner) -> None:
    source = eagle.write(tmp_path / "griffin", *CHECKPOINTS[Format.GRIFFIN])
    eagle.as_bin(source)
    assert run.invoke(app, command(source, tmp_path / "new", "--to", "griffin")).exit_code == 0
    assert read_shape(tmp_path / "new") == SHAPE


@pytest.mark.parametrize(("source", "tokens"), [(GRIFFIN, 59), (MOA, None)], ids=["griffin", "moa"])
def test_ours_is_told_its_target(run: CliRunner, source: Path, tokens: int | None, tmp_path: Path) -> None:
    new = tmp_path / "new"
    done = run.invoke(app, command(source, new, "--to", "speculators", "--target", TARGET))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == f"vllm serve {new}"
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, new))
    names = served_keys(source.name, "")
    assert {key: after[key] for key in before if key not in names} == {
        key: value for key, value in before.items() if key not in names
    }
    (proposal,) = after["speculators_config"].pop("proposal_methods")
    default = names["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    assert proposal == {"proposal_type": "greedy", "speculative_tokens": default}
    assert tokens in (None, default)
    assert after["speculators_config"] == {
        "algorithm": source.name,
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": str(TARGET), "architectures": ["LlamaForCausalLM"]},
    }
    assert (after["speculators_model_type"], after["speculators_version"]) == (source.name, "0.9.0")
    tensors, written = (load_file(folder / "model.safetensors") for folder in (source, new))
    assert tensors.keys() == written.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in tensors.items())


def test_a_draft_vocabulary_is_kept(tmp_path: Path, run: CliRunner) -> None:
    config, tensors = CHECKPOINTS[Format.GRIFFIN]
    source = eagle.write(tmp_path / "griffin", config, tensors | {"d2t": torch.tensor([3, 4])})
    assert run.invoke(app, command(source, tmp_path / "new", "--to", "griffin")).exit_code == 0
    assert read_checkpoint(tmp_path / "new" / "model.safetensors", 19) == [3, 5]


def test_a_draft_vocabulary_of_another_target_is_refused(tmp_path: Path) -> None:
    config, tensors = CHECKPOINTS[Format.GRIFFIN]
    source = eagle.write(tmp_path / "griffin", config, tensors | {"d2t": torch.tensor([19])})
    assert "d2t maps draft token 0 to token 19" in refusal(source, To.GRIFFIN)


@pytest.mark.parametrize("to", [To.GRIFFIN, To.SPECULATORS])
def test_another_target_is_refused(to: To, tmp_path: Path) -> None:
    source = eagle.write(tmp_path / "drafter", *CHECKPOINTS[Format.GRIFFIN])
    assert "whose hidden_size is 256; the drafter was made for a target with 16" in refusal(source, to, str(TARGET))


def test_moa_without_a_tensor_is_refused(tmp_path: Path) -> None:
    tensors = load_file(MOA / "model.safetensors")
    del tensors["Ekv2E.bias"]
    source = eagle.write(tmp_path / "moa", json.loads((MOA / "config.json").read_text()), tensors)
    assert "lacks tensor Ekv2E.bias" in refusal(source, To.SPECULATORS, str(TARGET))
    with pytest.raises(ConfigurationError, match=r"Ekv2E\.bias"):
        moa.read_shape(source)
