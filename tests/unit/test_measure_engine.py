"""An engine in a process of its own, seen from outside, and the arguments that it gets."""

import os
import re
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import compared_arguments
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn


def answered_by(monkeypatch: pytest.MonkeyPatch, function: Callable[[Connection], None]) -> None:
    """``function`` in place of the engine's process."""
    monkeypatch.setattr(EngineProcess, "answers", f"{__name__}:{function.__name__}")


TURN = Turn([Answer([1, 2], 0.5, 1.0, 3)], 1.5, Speculation(4, 16, (3, 1)))


def take_turns(asked: Connection) -> None:
    assert "--model=here" in asked.recv()["arguments"]
    asked.send({"model_runner": "V1", "max_model_len": 9})
    while True:
        try:
            assert asked.recv()["concurrency"] == 4
        except EOFError:
            return
        asked.send(TURN)


def test_turns_come_back_from_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answered_by(monkeypatch, take_turns)
    with EngineProcess("ngram", ["--model=here"], None, tmp_path / "log") as engine:
        assert engine.facts == {"model_runner": "V1", "max_model_len": 9}
        for _ in range(2):
            assert engine.turn([[1]], 8, 4) == TURN
    assert engine.process.returncode == 0


def tell_environment(asked: Connection) -> None:
    asked.recv()
    asked.send({name: os.environ[name] for name in ("ONLY_HERE", "VLLM_ENABLE_V1_MULTIPROCESSING")})


def test_the_process_has_its_own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answered_by(monkeypatch, tell_environment)
    with EngineProcess("plain-stock", [], None, tmp_path / "log", {"ONLY_HERE": "yes"}) as engine:
        assert engine.facts == {"ONLY_HERE": "yes", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    assert "ONLY_HERE" not in os.environ


def end(asked: Connection) -> None:
    asked.recv()
    sys.exit("out of memory")


def test_a_process_that_ends_is_told_with_its_last_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answered_by(monkeypatch, end)
    with (
        pytest.raises(ConfigurationError, match=r"^the engine of tree ended\.\nout of memory$"),
        EngineProcess("tree", [], None, tmp_path / "log"),
    ):
        pass


def refuse(asked: Connection) -> None:
    asked.recv()
    asked.send(ConfigurationError("a tree is too large."))


def test_what_the_engine_refuses_is_the_users_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answered_by(monkeypatch, refuse)
    with (
        pytest.raises(ConfigurationError, match=r"^tree: a tree is too large\.$"),
        EngineProcess("tree", [], None, tmp_path / "log"),
    ):
        pass


def test_the_users_arguments_come_last_and_the_bundled_ones_are_the_bundled_targets_alone() -> None:
    assert compared_arguments(None, ["--dtype=bfloat16"])[-1] == "--dtype=bfloat16"
    assert any(re.match("--max-model-len", one) for one in compared_arguments(None, []))
    assert not any(re.match("--max-model-len|--dtype", one) for one in compared_arguments("model", []))
    assert "--no-enable-prefix-caching" in compared_arguments("model", [])
