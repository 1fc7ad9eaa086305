"""An engine in a process of its own, so that one with drafts and one without can take turns.

The process first gets what to load (``arguments`` and ``speculative``, as of `Engine`) and answers with what was
loaded. Everything else that it gets is a turn, the arguments of `Engine.turn`, and is answered with that. It ends when
nobody is left who could ask.
"""

import multiprocessing
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import ENVIRONMENT
from vllm_specext.measure.engine import Engine
from vllm_specext.measure.forks import Fork, take_threads
from vllm_specext.measure.sampling import GREEDY, Sampling
from vllm_specext.measure.turns import Turn
from vllm_specext.vllm_process import set_default_threads, users_error, vllm_distribution


class EngineProcess:
    """Loads when it is entered, with ``environment`` added to this process's; a load or turn that fails is a
    ``ConfigurationError`` that calls the engine ``name`` and ends with the log."""

    answers = f"{__name__}:answer"
    """The function that the process calls."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        speculative: dict[str, Any] | None,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.environment = environment or {}
        self._request = {"arguments": list(arguments), "speculative": speculative}

    def __enter__(self) -> "EngineProcess":
        environment = {**os.environ, **ENVIRONMENT, **self.environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        self.log.write_bytes(b"")
        self._connection, others = multiprocessing.Pipe()
        with others:  # where only the process has its end, the end is seen when it dies
            self.process = Fork(self.answers, [others], environment=environment, stdout=self.log, stderr=self.log)
        try:
            self.facts: dict[str, Any] = self._ask(self._request)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def turn(
        self,
        prompts: Sequence[list[int]],
        tokens: int,
        concurrency: int,
        nodes: int | None = None,
        ignore_eos: bool = False,
        sampling: Sampling = GREEDY,
    ) -> Turn:
        """Ask the engine as `Engine.turn` does."""
        asked = {"prompts": list(prompts), "tokens": tokens, "concurrency": concurrency, "nodes": nodes}
        return cast(Turn, self._ask({**asked, "ignore_eos": ignore_eos, "sampling": sampling}))

    def _ask(self, value: dict[str, Any]) -> Any:
        try:
            self._connection.send(value)
            answer = self._connection.recv()
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):  # what it has to say comes with its end
                self.process.wait(30)
            last = "\n".join(self.log.read_text(errors="replace").rstrip().splitlines()[-20:])
            raise ConfigurationError(f"the engine of {self.name} ended.\n{last}") from None
        if isinstance(answer, ConfigurationError):
            raise ConfigurationError(f"{self.name}: {answer}")
        return answer

    def _end(self) -> None:
        self._connection.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answer(asked: Connection) -> None:
    """In the process: load, then take turns until the other end is closed."""
    set_default_threads()
    take_threads()
    with vllm_distribution():
        try:
            engine = Engine(**asked.recv())
        except Exception as error:
            if ours := users_error(error):
                asked.send(ours)
                return
            raise
        asked.send(engine.facts())
        while True:
            try:
                turn = asked.recv()
            except EOFError:
                return
            asked.send(engine.turn(**turn))
