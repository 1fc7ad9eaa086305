"""What a training does beside its steps: accumulation, evaluation, its log and trackers, its end by a signal."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.test_training_loop import Line, Numbers, stage
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.acceptance import Acceptance
from vllm_specext.training.log import scalars
from vllm_specext.training.loop import fit
from vllm_specext.training.run import Evaluation, Run, load_best
from vllm_specext.training.stages import Steps
from vllm_specext.training.step import Progress, Sums


class Counted(Line):
    """Batch ``n`` has ``n`` positions, each with a gradient of one."""

    def forward(self, batch: Tensor, progress: Progress) -> Sums:
        loss = self.model.weight.sum() * batch.square()
        return Sums(loss, batch, {"mean": (batch.square(), batch)})

    def weight(self, batch: Tensor) -> Tensor:
        return batch


def test_accumulated_batches_weigh_as_many_as_their_positions() -> None:
    step = Counted()
    log = fit(step, Numbers([1, 3, 2, 2]), [stage(Steps(2, 1))], Run(accumulate=2))
    # Means of n over n positions: 1 and 9 of 4; 4 and 4 of 4. The second step is half as long.
    moved = (1 * 1 + 3 * 3) / 4 + 0.5 * (2 * 2 + 2 * 2) / 4
    assert step.model.weight.tolist()[0] == pytest.approx([-moved, -moved])
    assert [entry["mean"] for entry in log] == [2.5, 2]
    assert [entry["step"] for entry in log] == [1, 2]
    plain = Line()
    fit(plain, Numbers([1, 3, 2, 2]), [stage(Steps(2, 1))], Run(accumulate=2))
    assert plain.model.weight.tolist()[0] == pytest.approx([-3, -3])


def test_one_batch_that_is_not_finite_makes_the_step_not_finite() -> None:
    step = Counted()
    log = fit(step, Numbers([1, float("nan"), 2, 2]), [stage(Steps(2, 1))], Run(accumulate=2))
    assert step.model.weight.tolist()[0] == pytest.approx([-1, -1])
    assert log[-1]["skipped"] == 1


def acceptance(tokens: float) -> Acceptance:
    return Acceptance(tokens, (0.5, 0.25), 10)


def test_the_weights_with_the_most_tokens_per_verification_are_kept(tmp_path: Path) -> None:
    step, found = Line(), iter([1.5, 2.5, 2.0, 2.25])
    run = Run(evaluation=Evaluation(2, lambda: acceptance(next(found))), best=tmp_path / "best.pt")
    log = fit(step, Numbers([1] * 7), [stage(Steps(7, log_every=1))], run)
    evaluated = {entry["step"]: entry["valid/tau_chain"] for entry in log if "valid/tau_chain" in entry}
    assert evaluated == {2: 1.5, 4: 2.5, 6: 2.0, 7: 2.25}
    assert log[1]["valid/accept/depth_2"] == 0.25
    best = Line()
    assert load_best(tmp_path / "best.pt", best.model) == 2.5
    moved = sum(1 - n / 7 for n in range(4))
    assert best.model.weight.tolist()[0] == pytest.approx([-moved, -moved])
    assert not torch.equal(best.model.weight, step.model.weight)


def test_better_weights_that_cannot_be_written_do_not_end_a_training(tmp_path: Path) -> None:
    nowhere, found = tmp_path / "not there" / "best.pt", iter([1.5, 2.5])
    run = Run(tmp_path / "state.pt", evaluation=Evaluation(1, lambda: acceptance(next(found))), best=nowhere)
    log = fit(Line(), Numbers([1] * 2), [stage(Steps(2, log_every=1))], run)
    assert [entry["valid/tau_chain"] for entry in log] == [1.5, 2.5]
    assert torch.load(tmp_path / "state.pt", weights_only=True)["at"]["best"] == 0


def test_a_training_that_goes_on_knows_what_was_best(tmp_path: Path) -> None:
    def run(*found: float) -> Run:
        values = iter(found)
        evaluation = Evaluation(1, lambda: acceptance(next(values)))
        return Run(state=tmp_path / "state.pt", evaluation=evaluation, best=tmp_path / "best.pt")

    with pytest.raises(IndexError):
        fit(Line(), Numbers([1] * 3), [stage(Steps(5, log_every=1))], run(1, 3, 2))
    fit(Line(), Numbers([1] * 5), [stage(Steps(5, log_every=1))], run(2.5, 2.9))
    assert load_best(tmp_path / "best.pt", nn.Linear(2, 1, bias=False)) == 3


class Signalled(Line):
    def forward(self, batch: Tensor, progress: Progress) -> Sums:
        if progress.step == 3:
            os.kill(os.getpid(), self.number)
        return super().forward(batch, progress)

    number: int


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_training_after_its_step_with_the_state(tmp_path: Path, number: int) -> None:
    step, file, handler = Signalled(), tmp_path / "state.pt", signal.getsignal(number)
    step.number = number
    run = Run(state=file, log=tmp_path / "log.jsonl")
    with pytest.raises(SystemExit) as ended:
        fit(step, Numbers([1] * 9), [stage(Steps(9, log_every=2))], run)
    assert ended.value.code == 3
    assert signal.getsignal(number) == handler
    assert torch.load(file, weights_only=True)["at"]["step"] == 3
    resumed, unbroken = Line(), Line()
    # The third step counts in the entry of the fourth.
    log = fit(resumed, Numbers([1] * 9), [stage(Steps(9, log_every=2))], run)
    assert log == fit(unbroken, Numbers([1] * 9), [stage(Steps(9, log_every=2))])
    assert torch.equal(resumed.model.weight, unbroken.model.weight)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_log_file_has_every_entry_once_with_its_speed(tmp_path: Path) -> None:
    run = Run(state=tmp_path / "state.pt", save_every=2, log=tmp_path / "log.jsonl")
    with pytest.raises(IndexError):
        fit(Line(), Numbers([1] * 5), [stage(Steps(8, log_every=1))], run)
    assert [entry["step"] for entry in read(tmp_path / "log.jsonl")] == [1, 2, 3, 4, 5]
    log = fit(Line(), Numbers([2] * 8), [stage(Steps(8, log_every=1))], run)
    written = read(tmp_path / "log.jsonl")
    assert [entry["batch"] for entry in written] == [1] * 4 + [2] * 4
    assert all({**line, **entry} == line for line, entry in zip(written, log, strict=True))
    assert all(entry["steps_per_s"] > 0 and 0 <= entry["data_wait"] <= 1 for entry in written)


def test_trackers_get_the_named_numbers() -> None:
    from accelerate.tracking import GeneralTracker

    got: list[tuple[int, dict[str, float]]] = []
    finished: list[int] = []

    class Remembering(GeneralTracker):  # type: ignore[misc]
        name, requires_logging_directory, tracker = "remembering", False, None

        def log(self, values: dict[str, float], step: int | None = None, **more: Any) -> None:
            got.append((step or 0, values))

        def finish(self) -> None:
            finished.append(len(got))

    numbers, plain = Numbers([1, 2, 3, 4]), Line()
    tracked = Line()
    stages = [stage(Steps(2, log_every=1)), stage(Steps(2, log_every=1))]
    log = fit(tracked, numbers, stages, Run(trackers=[Remembering()], settings={"seed": 0, "blocks": (3, 8)}))
    assert [step for step, _ in got] == [1, 2, 3, 4]
    assert got[2][1]["train/batch"] == 3
    assert {"train/loss", "train/lr", "train/grad_norm", "train/data_wait"} <= got[0][1].keys()
    assert log == fit(plain, Numbers([1, 2, 3, 4]), stages)
    assert torch.equal(tracked.model.weight, plain.model.weight)
    assert finished == [4]
    with pytest.raises(IndexError):  # an end of another kind
        fit(Line(), Numbers([1]), stages, Run(trackers=[Remembering()]))
    assert finished == [4, 5]


def test_numbers_of_passes_and_evaluations_have_names_of_their_own() -> None:
    entry = {"step": 3, "token": [0.5, 0.25], "valid/tau_chain": 2.0, "held_out": {"code": 1.0}}
    named = {"train/step": 3, "train/token/pass_1": 0.5, "train/token/pass_2": 0.25, "valid/tau_chain": 2.0}
    assert scalars(entry) == named


def test_a_tracker_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="log has the tracker 'paper'; expected one of tensorboard, wandb"):
        fit(Line(), Numbers([1]), [stage(Steps(1))], Run(trackers=["paper"]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="'wandb', which is not installed"):
        fit(Line(), Numbers([1]), [stage(Steps(1))], Run(trackers=["wandb"]))
