"""Recipes and settings: what is read, and one sentence for each thing that is wrong."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from tests.unit.runs import settings
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.block.dflash import DFlashTraining
from vllm_specext.training.block.dspark import DSparkTraining
from vllm_specext.training.choices import Trained
from vllm_specext.training.eagle3.train import Eagle3Training
from vllm_specext.training.griffin.train import GriffinTraining
from vllm_specext.training.moa.train import MoATraining
from vllm_specext.training.mtp.train import MtpTraining
from vllm_specext.training.pipeline import moa
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.over_features import as_trained
from vllm_specext.training.pipeline.settings import RunSettings, flags, longest_row
from vllm_specext.training.recipes.eagle3 import Eagle3Recipe
from vllm_specext.training.recipes.griffin import GriffinRecipe
from vllm_specext.training.recipes.moa import MoARecipe
from vllm_specext.training.recipes.named import LARGEST_FILE, RECIPES, read_recipe
from vllm_specext.training.recipes.values import checked


def test_the_named_recipes_and_a_file_are_read_and_changed_key_by_key(tmp_path: Path) -> None:
    assert read_recipe("griffin", "ours", []) == GriffinRecipe()
    assert read_recipe("eagle3", "ours", []) == Eagle3Recipe()
    assert read_recipe("moa", "released", []).learning_rates == (6e-4,)
    released = read_recipe("griffin", "released", ["packs=2"])
    assert isinstance(released, GriffinRecipe)
    assert (released.learning_rates, released.mask_position, released.packs) == ((5e-5, 3e-5, 3e-5), "code", 2)
    file = tmp_path / "mine.toml"
    file.write_text("steps = [3]\nlearning_rates = [1e-3]\n")
    assert read_recipe("eagle3", str(file), ["optimizer=adamw"]).optimizer == "adamw"


SHARED = {
    "learning_rates": (0.5,), "steps": (40,), "optimizer": "muon", "muon_factor": 3, "warmup_steps": 2,
    "weight_decay": 0.5, "clip_norm": 2, "bfloat16": False, "log_every": 8, "seed": 9, "schedule_steps": 100,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "griffin": {
        "clip_value": 2, "feature_weight": 3, "token_weight": 4, "top_k_weight": 5, "mask_top_k": 6,
        "mask_shift": "paper", "mask_position": "code", "masked_score": "zero", "noise": 7,
    },
    "eagle3": {"passes": 5, "later_passes": 0.5, "align": 4},
    "dflash": {"anchors": 9, "decay": 3},
    "dspark": {
        "anchors": 9, "decay": 3, "token_weight": 5, "distance_weight": 6, "confidence_weight": 7,
    },
    "mtp": {"later_passes": 0.5, "align": 4, "passes": 2},
    "moa": {
        "final_learning_rate": 0.25, "drafted": (2, 3), "staircase": 0.25, "count_boundaries": False,
    },
}  # fmt: skip


FOR_OTHERS = {"epochs", "tokens_per_step", "packs", "mlp_size"}
"""Keys that the packs and the drafter's shape follow from."""


@pytest.mark.parametrize(
    ("method", "kind", "of_shape"),
    [
        ("griffin", GriffinTraining, set()),
        ("eagle3", Eagle3Training, {"draft_vocab_size", "draft_vocab_file"}),
        ("dflash", DFlashTraining, {"layers", "block_size", "mask_token_id"}),
        ("dspark", DSparkTraining, {"layers", "block_size", "mask_token_id", "markov_rank"}),
        ("mtp", MtpTraining, set()),
    ],
)
def test_every_key_of_a_recipe_reaches_the_trainer(method: str, kind: type[Any], of_shape: set[str]) -> None:
    changed = RECIPES[method].keys(**SHARED, **OWN[method])
    trained, default = as_trained(changed, (40,), kind), kind()
    same = [name for name in vars(default) if getattr(trained, name) == getattr(default, name)]
    assert same == ["bfloat16"]  # which the trainer has off, and a recipe on
    default_keys = RECIPES[method].keys()
    assert as_trained(default_keys, (1,) * default_keys.stages, kind).bfloat16
    assert RECIPES[method].keys.model_fields.keys() == SHARED.keys() | OWN[method].keys() | FOR_OTHERS | of_shape


def test_every_key_of_moas_recipe_reaches_its_trainer() -> None:
    trained, default = moa.as_trained(MoARecipe(**SHARED, **OWN["moa"]), (40,)), MoATraining()
    same = {name for name in vars(default) if getattr(trained, name) == getattr(default, name)}
    assert same == {"lsa_chunk"}  # which no recipe has
    of_shape = {"lsa", "lsa_mlp_size", "target_layer_inference"}
    assert MoARecipe.model_fields.keys() == SHARED.keys() | OWN["moa"].keys() | FOR_OTHERS | of_shape


def test_every_method_of_the_command_has_recipes_and_a_part_in_a_training() -> None:
    methods = set(get_args(Trained))
    assert methods == RECIPES.keys() == TRAINABLE.keys()
    assert all(settings(method=method).recipe == RECIPES[method].keys() for method in methods)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        settings().max_length = 4  # type: ignore[misc]


WRONG = {
    "learning_rates=[0, 1e-4, 1e-4]": "'learning_rates.0' is 0, but input should be greater than 0.",
    "learning_rates=0": "'learning_rates' is 0, but input should be a valid array.",
    "learning_rates=[NaN, 1, 1]": "'learning_rates.0' is nan, but input should be",
    "learning_rates=[1e-4]": "the recipe has 1 entries for learning_rates, but 3 for epochs; each stage needs",
    "packs=2.5": "'packs' is 2.5, but input should be a valid integer",
    "packs=many": "'packs' is 'many', but input should be a valid integer.",
    "packs=0": "'packs' is 0, but input should be greater than or equal to 1.",
    "learning_rate=1": "'learning_rate' is unknown; allowed are epochs, steps, learning_rates,",
    "optimizer=sgd": "'optimizer' is 'sgd', but input should be 'adamw' or 'muon'.",
    "bfloat16=1": "'bfloat16' is 1, but input should be a valid boolean.",
    "epochs=[]": "'epochs' is [], but",
    "packs": "--set is 'packs', but must be KEY=VALUE",
}


@pytest.mark.parametrize(("change", "expected"), WRONG.items(), ids=WRONG)
def test_a_wrong_key_of_a_recipe_is_one_sentence(change: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_recipe("griffin", "ours", [change])
    sentence = str(refused.value)
    assert expected in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["epochs=[1,2]"], "'epochs' is [1, 2], but tuple should have at most 1 item"),
        (["drafted=[5,3]"], "the recipe's key 'drafted' is [5, 3]; expected the fewest steps, then the most."),
        (["drafted=[5]"], "'drafted."),
        (["final_learning_rate=0.5"], "'final_learning_rate' is 0.5, but learning_rates is [0.0002]; expected at most"),
    ],
)
def test_a_wrong_key_of_moas_recipe_is_one_sentence(changes: list[str], expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_recipe("moa", "ours", changes)
    assert expected in str(refused.value)


def test_a_recipe_with_which_a_dspark_drafter_learns_nothing_is_refused() -> None:
    read_recipe("dspark", "ours", ["token_weight=0"])
    with pytest.raises(ConfigurationError, match=r"token_weight 0 and distance_weight 0, with which .* learns"):
        read_recipe("dspark", "ours", ["token_weight=0", "distance_weight=0"])


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("theirs", None, "--recipe is 'theirs', but must be 'ours' or 'released' or a file .*, for method 'griffin'."),
        ("gone.toml", None, "which cannot be read: No such file"),
        ("bad.toml", b"steps = [", "which is not TOML"),
        ("binary.toml", b"\xff\xfe", "which is not TOML"),
        ("large.toml", b"#" * (LARGEST_FILE + 1), "which has more than"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_one_sentence(
    name: str, content: bytes | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=expected):
        read_recipe("griffin", name, [])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_length": 4}, "the setting 'max_length' is 4, but input should be greater than or equal to 16."),
        ({"samples": 0}, "the setting 'samples' is 0,"),
        ({"temperature": -1.0}, "the setting 'temperature' is -1.0,"),
        ({"data": []}, "the setting 'data' is [],"),
        ({"depth": 3}, "the setting 'depth' is unknown; allowed are method, target,"),
        (
            {"method": "swift"},
            "the setting 'method' is 'swift', but input should be 'griffin', 'eagle3', 'dflash', 'dspark', 'mtp' or "
            "'moa'.",
        ),
        ({"method": "eagle3", "recipe": {"noise": 1}}, "the recipe's key 'noise' is unknown; allowed are epochs,"),
        ({"recipe": 3}, "the recipe's key"),
    ],
)
def test_a_wrong_setting_is_one_sentence(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(**changes)
    assert expected in str(refused.value)


def test_settings_come_back_from_their_record() -> None:
    released = read_recipe("griffin", "released", []).model_dump(mode="json")
    made = settings(recipe=released, template_flags={"thinking": False})
    assert made.recipe != settings().recipe
    assert checked(RunSettings, made.model_dump(mode="json"), "the setting") == made


def test_flags_of_a_template_are_values_of_json_or_text() -> None:
    assert flags(["thinking=false", "date=today"]) == {"thinking": False, "date": "today"}
    with pytest.raises(ConfigurationError, match="--template-flag is 'thinking', but must be NAME=VALUE"):
        flags(["thinking"])


def test_rows_are_no_longer_than_the_target_takes() -> None:
    assert (longest_row(None, 1024), longest_row(None, 8192), longest_row(64, 1024)) == (1023, 2048, 64)
    with pytest.raises(ConfigurationError, match=r"--max-length is 2000, but .* 1024; at most 1023 are allowed"):
        longest_row(2000, 1024)
