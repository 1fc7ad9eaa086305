"""How many conversations an engine answers at once follows from the memory that their states take."""

import pytest

from tests.unit.runs import settings
from vllm_specext.measure.bundled import TARGET
from vllm_specext.target_stages import target_engine
from vllm_specext.target_stages.target_engine import at_once
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
