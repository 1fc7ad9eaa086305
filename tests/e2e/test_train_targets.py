"""Drafters for targets with sliding windows, with recurrent layers, and for one that hears, and a module that a target
has: from raw chats to what an engine accepts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.mimo import make_mimo
from tests.e2e.other_target import gemma3, gpt_oss, granite, make_target, qwen3_next
from tests.e2e.test_train_methods import check_trained
from tests.e2e.trainings import TWO_STAGES, Training
from tests.engine.hybrid import one_layer
from tests.engine.modules import OF_QWEN, add_module
from tests.engine.sounds import hearing

pytestmark = [pytest.mark.slow, pytest.mark.extended]
TITLES = {"griffin": ("GRIFFIN", "griffin"), "eagle3": ("EAGLE-3", "eagle3-tree")}


@pytest.mark.parametrize(
    ("make", "method"),
    [
        pytest.param(partial(make_target, new=gemma3), "griffin", id="gemma3"),
        pytest.param(partial(make_target, new=gpt_oss), "eagle3", id="gpt-oss"),
        pytest.param(partial(make_target, new=qwen3_next), "griffin", id="qwen3-next"),
        pytest.param(partial(make_target, new=granite), "griffin", id="granite"),
        pytest.param(hearing, "griffin", id="hears"),
    ],
)
def test_a_drafter_is_trained_exported_and_accepted(make: Callable[[Path], Path], method: str, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = make(tmp_path / "target")
    training = Training(tmp_path, target, "--set=mlp_size=256", method=method, recipe=TWO_STAGES)
    check_trained(training, *TITLES[method], target)


MODULE = """
steps = [60]
learning_rates = [8e-3]
optimizer = "muon"
warmup_steps = 2
tokens_per_step = 1024
packs = 2
log_every = 10
bfloat16 = false
"""


@pytest.mark.parametrize("options", [(), ("--processes=2", "--stream")], ids=["alone", "beside two processes"])
def test_a_module_is_trained_further_exported_and_accepted(options: tuple[str, ...], tmp_path: Path) -> None:
    """The target's own module is random: nothing that it drafts is accepted."""
    (tmp_path / "target").mkdir()
    target = make_mimo(tmp_path / "target")
    training = Training(tmp_path, target, "--temperature=0", *options, method="mtp", recipe=MODULE)
    check_trained(training, "MTP", "mtp-tree", target)


def test_a_module_with_experts_is_trained_further_exported_and_accepted(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = make_target(tmp_path / "target", new=qwen3_next)
    add_module(target, OF_QWEN, one_layer(target))
    training = Training(tmp_path, target, "--temperature=0", method="mtp", recipe=MODULE)
    check_trained(training, "MTP", "mtp-tree", target)
