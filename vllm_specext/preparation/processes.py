"""An engine for each device of this machine, in processes of their own."""

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
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
        self.executor.shutdown()


def _load(llm: dict[str, Any], sampling: dict[str, Any], devices: str | None) -> None:
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    _loaded.append(CapturingAnswerer(capturing_llm(**llm), sampling))


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_loaded[0], method)(*arguments)
