"""The end of an engine in a process of its own."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.preparation import processes


def test_vllms_processes_are_ended_before_the_one_that_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Executor:
        def submit(self, function: Any) -> Any:
            function()
            return SimpleNamespace(result=lambda: None)

        def shutdown(self) -> None:
            happened.append("process")

    core = SimpleNamespace(shutdown=lambda: happened.append("engine"))
    answerer = SimpleNamespace(llm=SimpleNamespace(llm_engine=SimpleNamespace(engine_core=core)))
    monkeypatch.setattr(processes, "_loaded", [answerer])
    engine = processes.LocalEngine.__new__(processes.LocalEngine)
    engine.executor = Executor()  # type: ignore[assignment]
    engine.close()
    assert happened == ["engine", "process"]
    assert processes._loaded == []


def test_an_engine_whose_process_has_died_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Executor:
        def submit(self, function: Any) -> Any:
            raise processes.BrokenProcessPool

        def shutdown(self) -> None:
            pass

    engine = processes.LocalEngine.__new__(processes.LocalEngine)
    engine.executor = Executor()  # type: ignore[assignment]
    engine.close()
