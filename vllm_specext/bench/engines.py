"""Engines in processes of their own, so that one with drafts and one without can take turns."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_specext.bench.configurations import Configuration, served
from vllm_specext.bench.turns import Answer, Turn
from vllm_specext.demo.run import Speculation
from vllm_specext.demo.server import ARGUMENTS, ENVIRONMENT, platform_arguments
from vllm_specext.errors import ConfigurationError

SHARED_GPU = ("--gpu-memory-utilization=0.45",)
"""Two engines or servers are up at once."""


class Engine:
    """Loads when it is entered; a load or turn that fails is a ``ConfigurationError`` that ends with the log."""

    def __init__(self, configuration: Configuration, target: str | None, arguments: Sequence[str], log: Path) -> None:
        self.name = configuration.name
        self.log = log
        self._request = {
            "arguments": [f"--model={served(target)}", *vllm_arguments(target, arguments)],
            "speculative": configuration.speculative,
        }

    def __enter__(self) -> "Engine":
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm_specext.bench.engine_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
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

    def turn(self, prompts: Sequence[list[int]], tokens: int, concurrency: int, nodes: int | None = None) -> Turn:
        """Greedy answers of up to ``tokens`` to all ``prompts``, ``concurrency`` at a time."""
        asked = {"prompts": list(prompts), "tokens": tokens, "concurrency": concurrency, "nodes": nodes}
        found = self._ask(asked)
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


def vllm_arguments(target: str | None, arguments: Sequence[str]) -> list[str]:
    """For an engine or a server that shares the machine with another: the demonstration's for the bundled target, then
    the user's. No prefix cache, so that a prompt costs the same in every round."""
    import torch

    own = ["--no-enable-prefix-caching"]
    if target is None:
        own += [*ARGUMENTS, *platform_arguments()]
    elif torch.cuda.is_available():
        own += SHARED_GPU
    return [*own, *arguments]
