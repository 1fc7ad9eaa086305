"""The engine of a training's target: how many conversations it answers at once follows from the memory that their
states take, and it loads nothing to see with."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.unit.runs import settings
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import TARGET
from vllm_specext.target_stages import target_engine
from vllm_specext.target_stages.target_engine import at_once, capturing, engine_arguments
from vllm_specext.training.pipeline.target import read_target

GIB = 2**30


@pytest.mark.parametrize(
    ("method", "engines", "memory", "expected"),
    [
        ("griffin", 1, 8 * GIB, 256),
        ("griffin", 1, 1.5 * GIB, 128),
        ("griffin", 2, 3 * GIB, 128),
        ("eagle3", 1, 6 * GIB, 128),
        ("griffin", 8, 1 * GIB, 64),
    ],
)
def test_the_states_of_many_conversations_take_a_quarter_of_the_memory_at_most(
    method: str, engines: int, memory: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = read_target(str(TARGET)).hidden_size
    run = settings(method=method, target=str(TARGET), max_length=GIB * 3 // 8 // 128 // width // 4)
    monkeypatch.setattr(target_engine, "on_gpu", lambda: True)
    monkeypatch.setattr(target_engine, "free_memory", lambda: int(memory))
    assert at_once(run, engines) == expected


def test_a_cpu_answers_few() -> None:
    assert at_once(settings(method="griffin", target=str(TARGET)), 1) == 64


def test_a_target_with_latent_attention_is_refused_on_a_cpu_before_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drafter could not be checked at the end."""
    model = SimpleNamespace(use_mla=True)
    engine = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(model_config=model)))
    monkeypatch.setattr(target_engine, "capturing_llm", lambda **_: engine)
    monkeypatch.setattr(target_engine, "CapturingAnswerer", lambda *_: None)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    answering = capturing(settings(method="griffin", target=str(TARGET)), [])
    with pytest.raises(ConfigurationError, match="on a CPU a target with latent attention"), answering:
        raise AssertionError
    model.use_mla = False
    with capturing(settings(method="griffin", target=str(TARGET)), []) as found:
        assert found.engines == 1


def test_what_a_target_sees_with_is_not_loaded(tmp_path: Path) -> None:
    assert "language_model_only" not in engine_arguments(settings(target=str(TARGET)))
    config = json.loads((TARGET / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vision_config": {}}))
    assert engine_arguments(settings(target=str(tmp_path)))["language_model_only"]
