"""A drafter of each further method, from raw chats to what an engine accepts: EAGLE-3's for a target that is not in the
repository and computes its features beside the training; MoA's, DFlash's and DSpark's for the bundled
target."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.e2e.other_target import make_target
from tests.e2e.trainings import TWO_STAGES, Training
from tests.engine.workload import DRAFT_VOCABULARY
from vllm_specext.convert.eagle3 import LAYER_IDS
from vllm_specext.measure.bundled import MODELS, TARGET

pytestmark = pytest.mark.slow

ONE_STAGE = """
steps = [16]
learning_rates = [8e-3]
warmup_steps = 2
drafted = [3, 8]
tokens_per_step = 512
packs = 2
log_every = 16
lsa_mlp_size = 64
bfloat16 = false
"""


BLOCKS = """
steps = [40]
learning_rates = [8e-3]
optimizer = "muon"
warmup_steps = 2
layers = 1
block_size = 8
anchors = 64
decay = 3.0
mlp_size = 256
tokens_per_step = 1024
packs = 2
log_every = 8
bfloat16 = false
"""


def check_trained(training: Training, title: str, serves: str, target: Path) -> None:
    status, told = training.run()
    assert status == 0, told + training.logs()
    check = training.read("check.json")
    assert check["identical"]  # with plain decoding's tokens
    assert check["prompts"] >= 4
    assert check["largest_difference"] <= 0.05  # between what the engine accepted and what simulated chains say
    assert check["served"]["tokens_per_verification"] >= 1.3
    config = training.read("drafter/config.json")
    assert config["speculators_model_type"] == serves
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(target)
    assert f"# {title} drafter for" in (training.run_folder / "drafter" / "README.md").read_text()


def left_features(training: Training) -> set[str]:
    """Beginnings of the names of what is left of the target's features."""
    return {path.name[:8] for path in (training.run_folder / "features").iterdir() if path.suffix != ".json"}


@pytest.mark.extended
@pytest.mark.parametrize("processes", [1, 2])
def test_an_eagle3_drafter_for_a_new_target_is_trained_beside_it_exported_and_accepted(
    processes: int, tmp_path: Path
) -> None:
    target = make_target(tmp_path / "qwen")
    options = ("--stream", f"--processes={processes}", "--set=mlp_size=256")
    training = Training(tmp_path, target, *options, method="eagle3", recipe=TWO_STAGES)
    check_trained(training, "EAGLE-3", "eagle3-tree", target)
    assert left_features(training) == {"held-out"}


def as_others_release(drafter: Path, folder: Path, nested: bool) -> Path:
    """``drafter`` in the layout of speculators, or in that of SpecForge."""
    tensors = load_file(drafter / "model.safetensors")
    config = json.loads((drafter / "config.json").read_text())
    own = {key: value for key, value in config.items() if not key.startswith(("speculators", "transformer_layer"))}
    if nested:
        outer = {key: own.pop(key) for key in ("draft_vocab_size", LAYER_IDS)} | {"norm_before_residual": False}
        written = outer | {"speculators_model_type": "eagle3", "transformer_layer_config": own}
    else:
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
        written = own | {"architectures": ["LlamaForCausalLMEagle3"]}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(written))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.extended
@pytest.mark.parametrize("processes", [1, 2])
def test_an_eagle3_drafter_with_a_vocabulary_of_its_own_is_trained_and_trained_further(
    processes: int, tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    vocabulary = ("--set=draft_vocab_size=280", f"--set=draft_vocab_file={DRAFT_VOCABULARY}", "--set=mlp_size=256")
    options = ("--temperature=0", f"--processes={processes}")
    first = Training(tmp_path / "first", TARGET, *options, *vocabulary, method="eagle3", recipe=TWO_STAGES)
    check_trained(first, "EAGLE-3", "eagle3-tree", TARGET)
    drafter = first.run_folder / "drafter"
    assert first.read("drafter/config.json")["draft_vocab_size"] == 280
    released = as_others_release(drafter, tmp_path / "released", nested=processes == 2)
    second = Training(tmp_path, TARGET, *options, f"--init={released}", method="eagle3", recipe=TWO_STAGES)
    check_trained(second, "EAGLE-3", "eagle3-tree", TARGET)
    assert second.log()[0]["token"][0] < 0.8 * first.log()[0]["token"][0]
    heads = (
        load_file(folder / "model.safetensors")["lm_head.weight"] for folder in (drafter, second.run_folder / "drafter")
    )
    assert not torch.equal(*heads)


@pytest.mark.extended
def test_a_moa_drafter_is_trained_exported_and_accepted(tmp_path: Path) -> None:
    options = ("--temperature=0", "--max-length=128", "--set=mlp_size=256")
    training = Training(tmp_path, TARGET, *options, method="moa", recipe=ONE_STAGE)
    check_trained(training, "MoA", "moa", TARGET)
    assert left_features(training) == set()


def test_a_drafter_of_another_target_is_refused_to_begin_with(tmp_path: Path) -> None:
    target = make_target(tmp_path / "qwen")
    status, told = Training(tmp_path, target, f"--init={MODELS / 'eagle3'}", "--dry-run").run()
    assert status == 2
    assert told.splitlines()[-1].startswith("error: ")


@pytest.mark.extended
@pytest.mark.parametrize("options", [[], ["--processes=2"], ["--stream"]], ids=["alone", "two processes", "beside"])
def test_a_dflash_drafter_is_trained_exported_and_accepted(options: list[str], tmp_path: Path) -> None:
    training = Training(tmp_path, TARGET, "--temperature=0", *options, method="dflash", recipe=BLOCKS)
    check_trained(training, "DFlash", "dflash-tree", TARGET)
    config = training.read("drafter/config.json")
    assert (config["block_size"], config["dflash_config"]["target_layer_ids"]) == (8, [1, 3, 5, 7, 9])
    assert training.read("check.json")["chain"] == 7  # whole blocks


@pytest.mark.extended
@pytest.mark.parametrize("options", [[], ["--processes=2"]], ids=["alone", "two processes"])
def test_a_dspark_drafter_is_trained_exported_and_accepted(options: list[str], tmp_path: Path) -> None:
    recipe = BLOCKS.replace("block_size = 8", "block_size = 7\nmarkov_rank = 32")
    training = Training(tmp_path, TARGET, "--temperature=0", *options, method="dspark", recipe=recipe)
    check_trained(training, "DSpark", "dspark-tree", TARGET)
    config = training.read("drafter/config.json")
    assert (config["markov_rank"], config["sample_from_anchor"], config["target_layer_ids"]) == (
        32,
        True,
        [1, 3, 5, 7, 9],
    )
    assert training.read("check.json")["chain"] == 7  # whole blocks
