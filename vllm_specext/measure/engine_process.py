"""An engine in a process of its own, so that one with drafts and one without can take turns.

The process is ``python -m vllm_specext.measure.engine_process`` and answers one JSON line with another. The first line
says what to load (``arguments`` and ``speculative``, as of `Engine`) and is answered with what was loaded. Every
further line is a turn, with the arguments of `Engine.turn`. What vLLM prints goes to standard error, so that standard
output has the answers alone. The process ends with its standard input.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import ENVIRONMENT
from vllm_specext.measure.engine import Engine
from vllm_specext.measure.sampling import GREEDY, Sampling
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn
from vllm_specext.vllm_process import set_default_threads, users_error, vllm_distribution


class EngineProcess:
    """Loads when it is entered, with ``environment`` added to this process's; a load or turn that fails is a
    ``ConfigurationError`` that calls the engine ``name`` and ends with the log."""

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
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm_specext.measure.engine_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **ENVIRONMENT, **self.environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            )
        try:
            self.facts = self._ask(self._request)
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
        found = self._ask({**asked, "ignore_eos": ignore_eos, "sampling": asdict(sampling)})
        told = found["speculation"]
        return Turn(
            [Answer(**answer) for answer in found["answers"]],
            found["duration"],
            Speculation(told["verifications"], told["nodes"], tuple(told["accepted"])),
        )

    def _ask(self, value: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(value) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            last = "\n".join(self.log.read_text(errors="replace").rstrip().splitlines()[-20:])
            raise ConfigurationError(f"the engine of {self.name} ended.\n{last}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ConfigurationError(f"{self.name}: {answer['error']}")
        return answer

    def _end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=out, flush=True)

    set_default_threads()
    with vllm_distribution():
        request = json.loads(sys.stdin.readline())
        try:
            engine = Engine(**request)
        except Exception as error:
            if ours := users_error(error):
                reply({"error": str(ours)})
                return
            raise
        reply(engine.facts())
        for line in sys.stdin:
            asked = json.loads(line)
            reply(asdict(engine.turn(**asked | {"sampling": Sampling(**asked["sampling"])})))


if __name__ == "__main__":
    main()
