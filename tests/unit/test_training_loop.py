"""The trainer on a model of two numbers: learning rates, steps that are not finite, states that are refused."""

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError
from vllm_specext.training import loop, state
from vllm_specext.training.features import RandomOrder
from vllm_specext.training.loop import fit
from vllm_specext.training.run import Run
from vllm_specext.training.stages import Length, ProcessorTime, Stage, Steps
from vllm_specext.training.step import Progress, Share, Sums, TrainingStep


class Numbers:
    """Batch ``n`` is the ``n``-th of ``values``."""

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.next_one = 0

    def next(self, progress: Progress, share: Share) -> Tensor:
        self.next_one += 1
        return torch.tensor(float(self.values[self.next_one - 1]))

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next_one}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_one = state["next"]


class Line(TrainingStep[Tensor]):
    """The gradient of both weights is the batch, or nothing where dropout says so."""

    def __init__(self, width: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.model = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.dropout = dropout
        self.seen: list[Progress] = []

    def forward(self, batch: Tensor, progress: Progress) -> Sums:
        self.seen.append(progress)
        loss = nn.functional.dropout(self.model.weight, self.dropout).sum() * batch
        return Sums.of_means(loss, {"batch": batch})

    def measure(self, progress: Progress) -> dict[str, Any]:
        return {"at": progress.step}


def stage(length: Length, rate: float = 1.0, momentum: float = 0.0) -> Stage:
    return Stage(
        length,
        lambda model: [torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)],
        lambda progress: 1 - progress.done,
        partial(nn.utils.clip_grad_value_, clip_value=4.0),
    )


def test_every_step_has_its_learning_rate_and_every_stage_new_optimizers() -> None:
    step = Line()
    log = fit(step, Numbers([1, 9, 2, 2, 1]), [stage(Steps(2, log_every=1)), stage(Steps(3, 2), 0.1, momentum=1.0)])
    # Gradients are clipped at 4; momentum begins anew: 2, then 4, then 5.
    moved = 1 * 1 + 0.5 * 4 + 0.1 * (2 + 4 * 2 / 3 + 5 * 1 / 3)
    assert step.model.weight.tolist()[0] == pytest.approx([-moved, -moved])
    assert [(entry["stage"], entry["step"], entry["batch"], entry["at"]) for entry in log] == [
        (1, 1, 1, 1),
        (1, 2, 9, 2),
        (2, 2, 2, 2),
        (2, 3, 1, 3),
    ]
    assert step.seen == [Progress(1, 1, 0), Progress(1, 2, 0.5)] + [Progress(2, n + 1, n / 3) for n in range(3)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_step_that_is_not_finite_is_skipped_and_counted(bad: float) -> None:
    step = Line()
    log = fit(step, Numbers([1, bad, 2, bad]), [stage(Steps(4, log_every=2))])
    assert step.model.weight.tolist()[0] == pytest.approx([-2.0, -2.0])
    assert [entry["skipped"] for entry in log] == [1, 2]
    assert [entry["batch"] for entry in log] == [1, 2]


def test_too_many_of_them_in_a_row_end_the_training_with_the_last_good_weights(tmp_path: Path) -> None:
    step, file = Line(), tmp_path / "state.pt"
    with pytest.raises(ConfigurationError, match=r"20 steps in a row, up to step 25 of stage 1, .* not a finite"):
        fit(step, Numbers([1.0] * 5 + [float("nan")] * 20), [stage(Steps(100, log_every=1))], Run(file))
    kept = torch.load(file, weights_only=True)
    assert torch.equal(kept["model"]["weight"], step.model.weight)
    assert step.model.weight.isfinite().all()


def test_random_numbers_of_a_step_go_on_where_they_were(tmp_path: Path) -> None:
    def train(file: Path | None, batches: int) -> Tensor:
        step = Line(16, dropout=0.5)
        fit(step, Numbers([1.0] * batches), [stage(Steps(8, log_every=2))], Run(file))
        return step.model.weight

    torch.manual_seed(0)
    unbroken = train(None, 8)
    file = tmp_path / "state.pt"
    torch.manual_seed(0)
    with pytest.raises(IndexError):
        train(file, 5)
    kept = torch.load(file, weights_only=True)
    torch.manual_seed(1)
    assert torch.equal(train(file, 8), unbroken)
    torch.save({**kept, "random": torch.Generator().manual_seed(1).get_state()[None]}, file)
    assert not torch.equal(train(file, 8), unbroken)


def test_a_stage_of_processor_time_has_what_is_left_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100, 200))
    monkeypatch.setattr(time, "process_time", lambda: float(next(seconds)))
    file, length = tmp_path / "state.pt", ProcessorTime(8.0, entries=4)
    with pytest.raises(IndexError):
        fit(Line(), Numbers([1] * 5), [stage(length)], Run(file))
    step = Line()
    log = fit(step, Numbers([1] * 8), [stage(length)], Run(file))
    assert [entry["step"] for entry in log] == [2, 4, 6, 8]
    assert [progress.done for progress in step.seen] == [0.5, 0.625, 0.75, 0.875]


def full_disk(file: Path) -> None:
    """The next write of the state, to a file beside it, is to a full device."""
    file.with_name("state.pt.part").symlink_to("/dev/full")


def test_a_state_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, step_of = tmp_path / "state.pt", Line.forward
    kept = []

    def forward(line: Line, batch: Tensor, progress: Progress) -> Sums:
        if progress.step in (4, 5, 7):
            kept.append(torch.load(file, weights_only=True)["at"]["step"])
        if progress.step == 4:
            full_disk(file)
        return step_of(line, batch, progress)

    monkeypatch.setattr(Line, "forward", forward)
    log = fit(Line(), Numbers([1] * 9), [stage(Steps(9, log_every=2))], Run(file))
    assert kept == [2, 2, 6]
    assert [entry["step"] for entry in log] == [2, 4, 6, 8, 9]
    assert "state.pt could not be written: " in capsys.readouterr().out


def test_a_disk_that_stays_full_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, step_of = tmp_path / "state.pt", Line.forward

    def forward(line: Line, batch: Tensor, progress: Progress) -> Sums:
        if progress.step > 3:
            full_disk(file)
        return step_of(line, batch, progress)

    steps = [stage(Steps(20, log_every=1))]
    unbroken = fit(Line(), Numbers([1] * 20), steps)
    monkeypatch.setattr(Line, "forward", forward)
    with pytest.raises(SystemExit) as ended:
        fit(Line(), Numbers([1] * 20), steps, Run(file))
    monkeypatch.undo()
    assert ended.value.code == 75
    assert torch.load(file, weights_only=True)["at"]["step"] == 3
    assert fit(Line(), Numbers([1] * 20), steps, Run(file)) == unbroken


def finished(file: Path, **settings: Any) -> list[dict[str, Any]]:
    return fit(Line(), Numbers([1] * 4), [stage(Steps(4))], Run(file, settings))


def test_a_state_of_another_recipe_is_refused_with_the_key(tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    finished(file, steps=4, blocks=(3, 8))
    assert finished(file, steps=4, blocks=(3, 8))
    with pytest.raises(ConfigurationError, match=r"state\.pt was .* blocks \[3, 8\], but blocks is \[3, 9\] now"):
        finished(file, steps=4, blocks=(3, 9))
    with pytest.raises(ConfigurationError, match="with seed None, but seed is 0 now"):
        finished(file, steps=4, blocks=(3, 8), seed=0)


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    finished(file)
    with pytest.raises(ConfigurationError, match=r"state\.pt has the state of another model"):
        fit(Line(3), Numbers([1] * 4), [stage(Steps(4))], Run(file))


def test_a_state_over_other_batches_is_refused() -> None:
    kept = RandomOrder(5, 2, seed=0).state_dict()
    with pytest.raises(ConfigurationError, match="has rows 5, but rows is 6 now"):
        RandomOrder(6, 2, seed=0).load_state_dict(kept)
    with pytest.raises(ConfigurationError, match="has batch 2, but batch is 3 now"):
        RandomOrder(5, 3, seed=0).load_state_dict(kept)


class Code:
    """Runs when it is unpickled, if anything does that."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("was-executed",))


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "code", "other"])
def test_what_is_no_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "state.pt"
    finished(file)
    whole = file.read_bytes()
    if damage == "code":
        torch.save({"settings": Code()}, file)
    elif damage == "other":
        torch.save({"weight": torch.zeros(2)}, file)
    else:
        file.write_bytes({"empty": b"", "text": b"hello, world", "cut": whole[: len(whole) // 2]}[damage])
    with pytest.raises(ConfigurationError, match=r"state\.pt is not the state of a training"):
        finished(file)
    assert not Path("was-executed").exists()


def test_the_state_is_plain_data(tmp_path: Path) -> None:
    finished(tmp_path / "state.pt", steps=4)
    kept = state.load_state(tmp_path / "state.pt", {"steps": 4})
    counts = {"stage": 2, "step": 0, "steps": 4, "skipped": 0, "skipped_in_a_row": 0}
    assert kept["at"] == {**counts, "seconds": 0.0, "best": 0.0}
    assert json.loads(kept["log"])[-1]["step"] == 4
    assert loop.MOST_SKIPPED == 20
