"""A training that was killed ends with the same bits as one that was not."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.small_trainings import LOG_EVERY, METHODS

pytestmark = pytest.mark.usefixtures("one_thread")

KILLED_IN = 8
"""A step of the last stage, or the only one, after the state of another step."""


@pytest.fixture(scope="module", params=list(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def unbroken(method: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], Path]:
    folder = tmp_path_factory.mktemp("unbroken")
    return METHODS[method](folder, None).state_dict(), folder


@pytest.fixture(scope="module")
def killed(method: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The state that a killed training left."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.unit.small_trainings", method, str(folder), str(KILLED_IN)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [path.name for path in folder.iterdir()] == ["state.pt"]
    state: dict[str, Any] = torch.load(folder / "state.pt", weights_only=True)
    return state


def resumed(method: str, state: dict[str, Any], folder: Path) -> dict[str, Tensor]:
    torch.save(state, folder / "state.pt")
    return METHODS[method](folder, folder / "state.pt").state_dict()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_killed_training_ends_with_the_same_bits(
    method: str, unbroken: tuple[dict[str, Tensor], Path], killed: dict[str, Any], tmp_path: Path
) -> None:
    steps = killed["at"]["step"] + (5 if killed["at"]["stage"] == 2 else 0)
    assert KILLED_IN - 1 - LOG_EVERY <= steps < KILLED_IN
    weights, folder = unbroken
    assert not same(killed["model"], weights)
    assert same(resumed(method, killed, tmp_path), weights)
    assert (tmp_path / "training.json").read_text() == (folder / "training.json").read_text()
    assert (tmp_path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("part", ["model", "optimizers", "batches", "at"])
def test_every_part_of_the_state_is_needed(
    method: str, unbroken: tuple[dict[str, Tensor], Path], killed: dict[str, Any], tmp_path: Path, part: str
) -> None:
    """Each with the value that it has in another state."""
    other = {
        "model": {name: x.roll(1) for name, x in killed["model"].items()},
        "optimizers": [],
        "batches": earlier(killed["batches"]),
        "at": {**killed["at"], "step": killed["at"]["step"] - 1},
    }
    assert not same(resumed(method, {**killed, part: other[part]}, tmp_path), unbroken[0])


def earlier(batches: dict[str, Any]) -> dict[str, Any]:
    """All generators and places in the data as they were at the beginning."""
    fresh = torch.Generator().manual_seed(1).get_state()

    def reset(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: 0 if name == "packs" else reset(x) for name, x in value.items()}
        if isinstance(value, Tensor):
            return fresh if value.dtype == torch.uint8 else value[:0]
        return value

    reset_batches: dict[str, Any] = reset(batches)
    return reset_batches


def test_a_finished_training_is_not_made_again(method: str, tmp_path: Path) -> None:
    weights = METHODS[method](tmp_path, tmp_path / "state.pt").state_dict()
    state = (tmp_path / "state.pt").read_bytes()
    record = json.loads((tmp_path / "training.json").read_text())
    assert same(METHODS[method](tmp_path, tmp_path / "state.pt").state_dict(), weights)
    assert (tmp_path / "state.pt").read_bytes() == state
    assert json.loads((tmp_path / "training.json").read_text()) == record
