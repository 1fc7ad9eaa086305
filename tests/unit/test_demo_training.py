"""The trainings of the bundled target and of the drafters with vocabularies of their own, in small: they learn, and one
that breaks off goes on where it was."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from vllm_specext.demo import train_foreign, train_target
from vllm_specext.demo.train_target import PARTS, TargetBatches, TargetStep, Windows, stages
from vllm_specext.training.loop import fit
from vllm_specext.training.optimization import linear
from vllm_specext.training.run import Run


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Encoded texts of a period of seven tokens, and trainings of a few small steps."""
    for name in ("train", "code", "prose", "own", "held_out"):
        np.save(tmp_path / f"{name}.npy", np.tile(np.array([3, 1, 4, 1, 5, 9, 2], np.uint16), 200))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(Windows.__init__, "__defaults__", (24,))
    monkeypatch.setattr(train_target, "loop_share", lambda model, directory: {"code": 0.0, "prose": 0.0})
    parts = (
        PARTS[0]._replace(steps=6, batch=4, schedule=linear(2, 2, floor=1.0)),
        PARTS[1]._replace(steps=3, batch=3, schedule=linear(0, 3)),
        PARTS[2]._replace(steps=4, batch=3, continued=6),
    )
    monkeypatch.setattr(train_target, "PARTS", parts)
    monkeypatch.setattr(train_target, "ROWS", 4)
    monkeypatch.setattr(train_foreign, "FIRST_LENGTH", 16)
    monkeypatch.setattr(train_foreign, "SECOND_LENGTH", 32)
    return tmp_path


def new_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def train_a_target(texts: Path, state: Path | None) -> tuple[LlamaForCausalLM, list]:
    model = new_model()
    return model, fit(TargetStep(model, texts), TargetBatches(texts), stages(), Run(state))


def train_a_foreign_drafter(texts: Path, state: Path | None) -> tuple[LlamaForCausalLM, list]:
    model = new_model()
    return model, train_foreign.train(model, texts, torch.ones(16), minutes=0.25, state=state)


@pytest.mark.parametrize("train", [train_a_target, train_a_foreign_drafter])
def test_a_broken_off_training_ends_with_the_same_bits(
    texts: Path, monkeypatch: pytest.MonkeyPatch, train: Callable[[Path, Path | None], tuple[LlamaForCausalLM, list]]
) -> None:
    """Each step takes a second."""
    breaks: list[int] = []
    step_of, steps = torch.optim.AdamW.step, itertools.count(1)

    def step(optimizer: torch.optim.AdamW) -> None:
        if next(steps) in breaks:
            raise KeyboardInterrupt
        step_of(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    monkeypatch.setattr(time, "process_time", itertools.count(0.0).__next__)
    unbroken, log = train(texts, None)
    done = next(steps) - 1
    assert log[-1]["train"] < log[0]["train"]
    steps, breaks = itertools.count(1), [12]
    with pytest.raises(KeyboardInterrupt):
        train(texts, texts / "state.pt")
    resumed, log_of_both = train(texts, texts / "state.pt")
    assert log_of_both == log
    assert next(steps) - 1 < 12 + done, "it began anew"
    weights: dict[str, Tensor] = unbroken.state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in resumed.state_dict().items())


def test_loops_are_measured_when_a_stage_ends(texts: Path) -> None:
    _, log = train_a_target(texts, None)
    assert [(entry["stage"], entry["step"]) for entry in log] == [(1, 6), (2, 3), (3, 4)]
    assert all(entry["loops"] == {"code": 0.0, "prose": 0.0} for entry in log)
    assert "repeats" not in log[1]
    assert 0 < log[2]["repeats"] <= 1
