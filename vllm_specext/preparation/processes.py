"""An engine for each device of this machine, in processes of their own."""

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

from vllm_specext.preparation.answers import CapturingAnswerer
from vllm_specext.preparation.engine import capturing_llm

_loaded: list[CapturingAnswerer] = []
"""In an engine's own process, the one of it."""


class LocalEngine:
    """A ``RemoteEngine`` in a process that sees only ``devices``, such as ``"0"`` or ``"2,3"``, or all of them.

    ``llm`` are the arguments of `capturing_llm`. The engine loads at once; ``close`` ends the process.
    """

    def __init__(self, llm: Mapping[str, Any], sampling: Mapping[str, Any], devices: str | None = None) -> None:
        self.executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.loaded = self.executor.submit(_load, dict(llm), dict(sampling), devices)
        """Its result is ``None``, or what was wrong with the target."""

    def submit(self, method: str, *arguments: Any) -> "Future[Any]":
        return self.executor.submit(_call, method, arguments)

    def close(self) -> None:
        with suppress(BrokenProcessPool):
            self.executor.submit(_end).result()
        self.executor.shutdown()


def _load(llm: dict[str, Any], sampling: dict[str, Any], devices: str | None) -> None:
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    _loaded.append(CapturingAnswerer(capturing_llm(**llm), sampling))


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_loaded[0], method)(*arguments)


def _end() -> None:
    """Have vLLM end the processes that it has split the engine into. It would do so when the engine is freed, but this
    process waits for them before it frees anything."""
    while _loaded:
        _loaded.pop().llm.llm_engine.engine_core.shutdown()
