"""The plan against the sizes that the specification gives for Llama 2 7B and Llama 3 8B, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runs import settings
from tests.unit.test_described_target import target
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import TARGET
from vllm_specext.training.pipeline import plan as plans
from vllm_specext.training.pipeline.plan import make_plan, refuse_small_disk
from vllm_specext.training.pipeline.shown import plan_table, rows
from vllm_specext.training.pipeline.target import (
    read_target,
)


def test_figures_are_those_of_the_specification(tmp_path: Path) -> None:
    found = make_plan(settings(samples=1000, max_length=2048), target(tmp_path), None, tmp_path)
    assert found.feature_bytes_per_token == 8192
    assert found.trained_parameters == pytest.approx(416e6, rel=0.01)
    assert sum(found.operations_per_token) == pytest.approx(18.9e9, rel=0.01)
    assert found.memory.weights == pytest.approx(6.7e9, rel=0.01)
    assert found.memory.frozen == 32000 * 4096 * (4 + 4 + 2)  # both ends in float32, and the head in bfloat16 too
    # Features to read and to reproduce, of 4 packs of 8192 tokens, and of the next step's.
    assert found.memory.batches == 2 * 4 * 8192 * 2 * 4096 * 4
    assert found.memory.head == 3 * 1024 * 32000 * 4
    capped = target(tmp_path, final_logit_softcapping=30.0)
    capped_plan = make_plan(settings(samples=1000, max_length=2048), capped, None, tmp_path)
    assert capped_plan.memory.head == 4 * 1024 * 32000 * 4
    shared = make_plan(settings(samples=1000, max_length=2048), target(tmp_path), None, tmp_path, processes=4)
    assert shared.memory.batches == found.memory.batches / 4


def test_eagle3_keeps_the_states_of_three_layers_more_and_reads_them_once(tmp_path: Path) -> None:
    griffin, eagle3 = (
        make_plan(settings(samples=1000, max_length=2048, method=method), target(tmp_path), None, tmp_path)
        for method in ("griffin", "eagle3")
    )
    assert eagle3.feature_bytes_per_token == 4 * 8192
    assert eagle3.feature_bytes == 4 * (griffin.feature_bytes or 0)
    fc, rest = 3 * 4096**2, 3 * 4096 * 11008 + (3 * 2 + 1) * 4096**2 + 4 * 4096
    assert eagle3.trained_parameters == fc + rest
    first, second, third = eagle3.operations_per_token
    # Logits are made of the half that is learnt.
    assert third - second == second - first == 6 * rest + 2 * 32000 * 4096
    assert first == 6 * (fc + rest) + 3 * 32000 * 4096
    aligned = make_plan(settings(method="eagle3", recipe={"align": 3}), target(tmp_path), None, tmp_path)
    assert aligned.operations_per_token[0] == first + 3 * 32000 * 4096
    seven = {"passes": 7, "epochs": [12.0], "learning_rates": [2e-4]}
    published = make_plan(settings(method="eagle3", recipe=seven), target(tmp_path), None, tmp_path)
    assert published.operations_per_token == (first + 6 * (third - second),)
    assert published.memory.activations > 2 * eagle3.memory.activations


def test_moa_keeps_nothing_and_has_the_target_in_memory(tmp_path: Path) -> None:
    model = target(tmp_path)
    found = make_plan(settings(samples=1000, max_length=2048, method="moa"), model, None, tmp_path)
    assert (found.feature_bytes_per_token, found.feature_bytes) == (0, 0)
    assert found.memory.frozen == pytest.approx(2 * 6.74e9, rel=0.01)  # Llama 2 7B in bfloat16
    exact = settings(samples=1000, max_length=2048, method="moa", recipe={"bfloat16": False})
    assert make_plan(exact, model, None, tmp_path).memory.frozen == 2 * found.memory.frozen
    assert len(found.operations_per_token) == 1
    assert found.operations_per_token[0] > 2 * 6.7e9
    kept = {what: why for what, _, why in rows(found, 1)}
    assert kept["features"] == "none are kept: the target runs while the drafter is trained"
    without = make_plan(settings(method="moa", recipe={"lsa": False}), model, None, tmp_path)
    assert without.trained_parameters < found.trained_parameters
    assert without.operations_per_token < found.operations_per_token


@pytest.mark.parametrize(
    ("changes", "used", "expected"),
    [
        ({}, 33, "'target_layer_inference' is 33, but the target has 32 layers; at most as many are allowed"),
        ({"architectures": ["GemmaForCausalLM"]}, 1, "the target is a GemmaForCausalLM, whose last layers cannot"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 0, "rope_scaling has the type 'yarn'; supported"),
    ],
)
def test_a_target_that_moa_cannot_be_trained_for_is_refused_before_it_answers(
    changes: dict[str, Any], used: int, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        make_plan(
            settings(method="moa", recipe={"target_layer_inference": used}), target(tmp_path, **changes), None, tmp_path
        )


def test_a_target_of_few_layers_is_refused_for_eagle3(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="num_hidden_layers 3, but an EAGLE-3 drafter reads"):
        make_plan(settings(method="eagle3"), target(tmp_path, num_hidden_layers=3), None, tmp_path)


def test_hours_are_those_of_the_specification(tmp_path: Path) -> None:
    # 75 million tokens, prompts included, 21 times in each of three stages, on an A100 at 35 % of its peak: 76 hours.
    recipe = {"epochs": [21.0] * 3}
    found = make_plan(settings(tokens=37_500_000, recipe=recipe), target(tmp_path), None, tmp_path)
    assert found.hours is not None
    assert found.hours["A100"] == pytest.approx(76, rel=0.05)
    assert found.hours["H100"] == pytest.approx(24, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "counted", "stored", "learnt"),
    [
        ({}, None, None, None),
        ({}, 10, 1600, 800),
        ({"samples": 4}, 10, 640, 320),
        ({"tokens": 100}, 10, 200, 100),
        ({"tokens": 100}, None, 200, 100),
        ({"tokens": 10_000}, 10, 1600, 800),
    ],
)
def test_tokens_are_bounded_by_the_first_of_all_bounds(
    changes: dict[str, Any], counted: int | None, stored: int | None, learnt: int | None
) -> None:
    found = plans.bounded(settings(**changes), counted)
    assert (found.stored, found.learnt) == (stored, learnt)


def test_a_disk_that_is_too_small_is_refused_and_one_that_is_not_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1000 rows of 160 tokens, 512 bytes each.
    def planned(free: int) -> plans.Plan:
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(plans.shutil, "disk_usage", lambda _: usage)
        return make_plan(settings(), read_target(str(TARGET)), 1000, tmp_path)

    refuse_small_disk(planned(82_000_000), tmp_path)
    refuse_small_disk(planned(40_000_000), tmp_path, written=42_000_000)
    with pytest.raises(ConfigurationError) as refused:
        refuse_small_disk(planned(81_000_000), tmp_path)
    assert "where 0.1 GB are free, but features of up to 160000 tokens take 0.1 GB; fewer --samples" in str(
        refused.value
    )


def test_every_figure_of_the_table_has_a_reason(tmp_path: Path) -> None:
    found = make_plan(settings(), read_target(str(TARGET)), None, tmp_path)
    shown = rows(found, 2)
    assert all(what and figure and why for what, figure, why in shown)
    assert ("tokens", "unknown", "bounded by nothing: the data are not counted in advance") in shown
    assert plan_table(found, 2).row_count == len(shown)


def test_dflash_keeps_five_layers_and_plans_for_its_rows(tmp_path: Path) -> None:
    recipe = {"layers": 3, "block_size": 8, "mask_token_id": 5}
    found = make_plan(
        settings(samples=1000, max_length=2048, method="dflash", recipe=recipe), target(tmp_path), None, tmp_path
    )
    assert found.feature_bytes_per_token == 6 * 8192
    d, mlp, fc = 4096, 11008, 5 * 4096**2
    layer = 4 * d**2 + 3 * d * mlp + 2 * d + 2 * 128
    assert found.trained_parameters == fc + 3 * layer + 2 * d
    # Half as many rows as tokens: 512 blocks of 8 in a pack of 8192.
    of_row = 6 * (3 * layer + 2 * d) + 6 * 32000 * d
    assert found.operations_per_token == (0.5 * of_row + 6 * (fc + 3 * 2 * d**2),)
    longer = make_plan(settings(method="dflash", recipe=recipe | {"anchors": 1024}), target(tmp_path), None, tmp_path)
    assert longer.memory.activations > 1.5 * found.memory.activations


def test_dspark_plans_for_its_markov_head(tmp_path: Path) -> None:
    recipe = {"layers": 3, "block_size": 8, "mask_token_id": 5}
    dflash, dspark = (
        make_plan(settings(method=name, recipe=recipe), target(tmp_path), None, tmp_path)
        for name in ("dflash", "dspark")
    )
    table, sure = 32000 * 256, 4096 + 256 + 1
    assert dspark.trained_parameters - dflash.trained_parameters == 2 * table + sure
    # Of one table every number is passed by each row, of the other a row is looked up.
    assert dspark.operations_per_token[0] - dflash.operations_per_token[0] == 0.5 * 6 * (table + sure)
    assert dspark.memory.total > dflash.memory.total + 16 * 2 * table
