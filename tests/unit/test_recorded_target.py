"""The target's pass on a CPU: recorded at the second step of a shape, compared at the third, and replayed."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vllm_specext.engine.verification import recorded_target
from vllm_specext.engine.verification.recorded_target import MOST_ROWS, RecordedTarget


@dataclass
class Metadata:
    seq_lens: Tensor
    max_query_len: int = 1
    max_seq_len: int = 1
    scheduler: Any = None


class Steps:
    """A model whose pass reads ids, positions, lengths and slots, and the steps that are asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, forward: Any = None) -> None:
        torch.manual_seed(0)
        self.embedding, self.runs = nn.Embedding(50, 8), 0
        self.target = RecordedTarget(forward or self.forward)
        self.metadata: Any = None
        self.slots: Any = None
        monkeypatch.setattr(
            recorded_target,
            "get_forward_context",
            lambda: SimpleNamespace(
                attn_metadata=self.metadata and {"a": self.metadata, "b": self.metadata},
                slot_mapping={"a": self.slots, "b": self.slots},
            ),
        )

    def forward(self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        self.runs += 1
        lengths = self.metadata.seq_lens.sum() + self.slots.sum() if self.metadata else 0
        hidden: Tensor = self.embedding(input_ids) * positions[:, None] + lengths
        return hidden

    @torch.inference_mode()
    def step(self, rows: int, seed: int = 0, **metadata: Any) -> tuple[Tensor, Tensor]:
        """What a step of so many rows gives, and what it should."""
        torch.manual_seed(seed)
        self.metadata = Metadata(torch.randint(9, (2,)), **metadata)
        self.slots = torch.randint(9, (rows,))
        inputs = {
            "input_ids": torch.randint(50, (rows,)),
            "positions": torch.randint(9, (rows,)),
            "inputs_embeds": None,
        }
        result = self.target(**inputs).clone()
        runs = self.runs
        expected = self.forward(**inputs)
        self.runs = runs
        return result, expected

    def are_right(self, rows: int, seeds: range, **metadata: Any) -> list[int]:
        """How often the model has run after each step."""
        runs = []
        for seed in seeds:
            result, expected = self.step(rows, seed, **metadata)
            assert torch.equal(result, expected)
            runs.append(self.runs)
        return runs


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def test_the_fourth_step_of_a_shape_is_a_replay(steps: Steps) -> None:
    assert steps.are_right(3, range(6)) == [1, 2, 3, 3, 3, 3]
    assert steps.are_right(4, range(6)) == [4, 5, 6, 6, 6, 6]
    assert steps.are_right(3, range(6, 8)) == [6, 6]


def test_longer_requests_are_no_other_shape_and_wider_ones_are(steps: Steps) -> None:
    steps.are_right(3, range(4))
    assert steps.are_right(3, range(4, 6), max_seq_len=77) == [3, 3]
    assert steps.are_right(3, range(6), max_query_len=3) == [4, 5, 6, 6, 6, 6]


def test_of_the_shapes_that_came_once_the_latest_are_remembered(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_target, "MOST_SEEN", 2)
    assert [steps.are_right(rows, range(1)) for rows in (2, 3, 4)] == [[1], [2], [3]]
    # A shape is recorded at the second step that is remembered, and replayed after the third.
    assert steps.are_right(4, range(3)) == [4, 5, 5]
    assert steps.are_right(2, range(4)) == [6, 7, 8, 8]


@pytest.mark.parametrize("what", ["many rows", "no attention", "something unknown"])
def test_other_passes_run_as_they_are(steps: Steps, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MOST_ROWS + 1 if what == "many rows" else 3
    if what == "no attention":
        monkeypatch.setattr(
            recorded_target, "get_forward_context", lambda: SimpleNamespace(attn_metadata=None, slot_mapping={})
        )
    unknown = {"scheduler": object()} if what == "something unknown" else {}
    assert steps.are_right(rows, range(5), **unknown) == [1, 2, 3, 4, 5]


def test_a_model_that_counts_in_python_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, forward=lambda **inputs: steps.forward(**inputs) + steps.runs)
    warnings: list[str] = []
    monkeypatch.setattr(recorded_target.logger, "warning", warnings.append)
    for seed in range(5):
        result, expected = steps.step(3, seed)
        assert torch.equal(result, expected + steps.runs)
    assert steps.runs == 5
    assert warnings == ["The target's pass cannot be replayed, because it does more than call operations."]


def test_a_model_that_waits_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(
        monkeypatch, forward=lambda **inputs: steps.forward(**inputs) * (1 + 0 * inputs["positions"].sum().item())
    )
    assert steps.are_right(3, range(3))[0] == 1
    assert steps.runs == 4  # the second step ran to where it waits, and once more


def test_results_take_no_more_than_their_share(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_target, "BUDGET", 1)
    assert steps.are_right(3, range(4)) == [1, 2, 3, 3]
    assert steps.are_right(4, range(4)) == [4, 5, 6, 7]


def test_inputs_that_are_not_handed_over_are_found_out(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_target, "_handed_over", lambda inputs, metadata, slots: inputs.items())
    assert steps.are_right(3, range(5)) == [1, 2, 3, 4, 5]


def test_without_the_comparison_they_would_be_wrong(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(recorded_target, "_handed_over", lambda inputs, metadata, slots: inputs.items())
    monkeypatch.setattr(recorded_target, "Recorded", partial(recorded_target.Recorded, checked=True))
    steps.are_right(3, range(2))
    assert not torch.equal(*steps.step(3, 3))
