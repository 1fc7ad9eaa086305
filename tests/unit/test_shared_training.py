"""Two processes that share a training: what one has alone, the same in both, and the same bits after one was killed."""

import json
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.unit.shared_training import KILLED_IN, STATE_EVERY, launch, result, train
from vllm_specext.training.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

WITHOUT_FAULTS = ("equal", "means", "accumulated", "unbroken", "hidden", "apart", "signalled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what two processes made of all scenarios in which none is killed."""
    made = tmp_path_factory.mktemp("shared")
    for ended in launch(made, *WITHOUT_FAULTS):
        assert ended.returncode == 0, ended.stderr
    return made


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    return train()[0]


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max((a[name] - b[name]).abs().max().item() for name in a)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_two_processes_learn_what_one_learns(folder: Path, alone: dict[str, Tensor]) -> None:
    assert difference(result(folder, "equal", 0), alone) < 1e-5


def test_means_of_each_process_would_learn_something_else(folder: Path, alone: dict[str, Tensor]) -> None:
    assert difference(result(folder, "means", 0), alone) > 1e-3


@pytest.mark.parametrize("name", ["equal", "means", "accumulated", "unbroken"])
def test_both_have_the_same_weights(folder: Path, name: str) -> None:
    assert same(result(folder, name, 0), result(folder, name, 1))


def test_batches_of_one_step_are_shared_too(folder: Path) -> None:
    assert difference(result(folder, "accumulated", 0), train(run=Run(accumulate=2), size=2)[0]) < 1e-5


def test_parameters_that_nobody_averages_are_found_after_the_first_step(folder: Path) -> None:
    for process in range(2):
        assert "process 1 has other weights than process 0 after the first step" in result(folder, "hidden", process)


def test_processes_that_find_different_states_are_refused(folder: Path) -> None:
    for process in range(2):
        expected = f"of-{process}.pt is at step 12 for one process and at step 0 for another; expected a folder"
        assert expected in result(folder, "apart", process)


def test_a_signal_to_one_ends_both_after_the_step_with_a_state(folder: Path) -> None:
    assert [result(folder, "signalled", process) for process in range(2)] == ["3", "3"]
    kept = torch.load(folder / "signalled.pt", weights_only=True)
    assert kept["at"]["step"] == 5
    assert [json.loads(line)["step"] for line in (folder / "log.jsonl").read_text().splitlines()] == [STATE_EVERY]


def test_one_killed_process_ends_both_and_the_training_goes_on_with_the_same_bits(folder: Path, tmp_path: Path) -> None:
    killed = launch(tmp_path, "killed")
    assert killed[1].returncode == -signal.SIGKILL, killed[1].stderr
    assert killed[0].returncode != 0
    kept = torch.load(tmp_path / "state.pt", weights_only=True)
    assert kept["at"]["step"] == (KILLED_IN - 1) // STATE_EVERY * STATE_EVERY
    assert not same(kept["model"], result(folder, "unbroken", 0))
    assert not torch.equal(*kept["random"])
    for ended in launch(tmp_path, "resumed"):
        assert ended.returncode == 0, ended.stderr
    for process in range(2):
        assert same(result(tmp_path, "resumed", process), result(folder, "unbroken", process))
