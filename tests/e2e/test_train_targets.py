"""Drafters for targets with sliding windows, with recurrent layers, and for one that hears: from raw chats to what an
engine accepts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.other_target import gemma3, gpt_oss, make_target, qwen3_next
from tests.e2e.test_train_methods import check_trained
from tests.e2e.trainings import TWO_STAGES, Training
from tests.engine.sounds import hearing

pytestmark = [pytest.mark.slow, pytest.mark.extended]
TITLES = {"griffin": ("GRIFFIN", "griffin"), "eagle3": ("EAGLE-3", "eagle3-tree")}


@pytest.mark.parametrize(
    ("make", "method"),
    [
        pytest.param(partial(make_target, new=gemma3), "griffin", id="gemma3"),
        pytest.param(partial(make_target, new=gpt_oss), "eagle3", id="gpt-oss"),
        pytest.param(partial(make_target, new=qwen3_next), "griffin", id="qwen3-next"),
        pytest.param(hearing, "griffin", id="hears"),
    ],
)
def test_a_drafter_is_trained_exported_and_accepted(make: Callable[[Path], Path], method: str, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = make(tmp_path / "target")
    training = Training(tmp_path, target, "--set=mlp_size=256", method=method, recipe=TWO_STAGES)
    check_trained(training, *TITLES[method], target)
