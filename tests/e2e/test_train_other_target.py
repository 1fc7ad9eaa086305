"""A drafter for a target that is not in the repository, begun with another drafter's weights the second time."""

from pathlib import Path

import pytest

from tests.e2e.other_target import make_target
from tests.e2e.trainings import TWO_STAGES, Training
from vllm_specext.measure.bundled import MODELS

pytestmark = pytest.mark.slow


def test_a_drafter_for_a_new_target_is_trained_exported_and_accepted_by_an_engine(tmp_path: Path) -> None:
    target = make_target(tmp_path / "qwen")
    training = Training(tmp_path, target, recipe=TWO_STAGES)
    status, told = training.run()
    assert status == 0, told + training.logs()
    check = training.read("check.json")
    assert check["identical"]
    assert check["served"]["tokens_per_verification"] >= 1.3
    assert check["largest_difference"] <= 0.05
    assert training.read("drafter/config.json")["speculators_config"]["verifier"]["name_or_path"] == str(target)


def test_a_drafter_of_another_target_is_refused_to_begin_with(tmp_path: Path) -> None:
    target = make_target(tmp_path / "qwen")
    wide = MODELS / "eagle3"
    status, told = Training(tmp_path, target, f"--init={wide}", "--dry-run").run()
    assert status == 2
    assert told.splitlines()[-1].startswith("error: ")
