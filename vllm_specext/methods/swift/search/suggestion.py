"""Bayesian suggestions that never hold up the engine.

A suggestion takes seconds of a core, and much of that time it holds Python's lock. So another process computes it, on
one thread and at low priority. The process starts when it is told to, or else with the first suggestion, and ends with
the engine, however the engine ends. It is a program with a pipe and not of `multiprocessing`: vLLM's workers are
daemons, which may have no such children, and spawning would run the user's script again. The observations and the seed
alone decide what is suggested; the machine decides when. A process that fails is started again once. If that fails too,
there are no more suggestions, and the search goes on at random.
"""

import json
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence

from vllm_specext.methods.swift.search.search import Observation
from vllm_specext.methods.swift.search.skip_set import SkipSet, num_variables

logger = logging.getLogger(f"vllm.{__name__}")  # a child of vLLM's logger, whose handlers and level it shares

ANSWER_BYTES = 1 << 16
"""Far more bytes than any answer has."""

STARTS = 2
"""The process is started at most so often. The first may have ended because memory was short for a moment."""


class BayesianSuggester:
    """A `Suggester` in another process, with at most one suggestion under way."""

    def __init__(self, layers: int, skipped: int, seed: int = 1) -> None:
        """Suggest sets that skip ``skipped`` sub-layers of a target with ``layers`` layers."""
        self._layers = layers
        self._skipped = skipped
        self._seed = seed
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize | None = None
        self._is_busy = False
        self._failures = 0
        self._received = b""

    @property
    def pid(self) -> int | None:
        """The process's id, ``None`` if it does not run."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process, which takes seconds to load its libraries."""
        if self._process is not None or self._failures == STARTS:
            return
        try:
            self._start()
        except OSError as error:
            self._fail(str(error))

    def ask(self, observations: Sequence[Observation]) -> None:
        if self._is_busy or not observations or self._failures == STARTS:
            return
        request = {
            "variables": num_variables(self._layers),
            "skipped": self._skipped,
            "seed": self._seed,
            # As bits, so that a request fits into an empty pipe and writing never waits.
            "points": [f"{sum(1 << variable for variable in skipped.variables):x}" for skipped, _ in observations],
            "scores": [score for _, score in observations],
        }
        self._seed += 1
        line = json.dumps(request).encode() + b"\n"
        while not self._is_busy and self._failures < STARTS:
            self.start()
            if self._process is not None:
                self._send(line)

    def ready(self) -> SkipSet | None:
        if not self._is_busy:
            return None
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            piece = os.read(self._process.stdout.fileno(), ANSWER_BYTES)
            self._received += piece
            if not piece:
                raise EOFError(f"it ended with status {self._process.poll()}")
            if len(self._received) > ANSWER_BYTES:
                raise ValueError(f"its answer has more than {ANSWER_BYTES} bytes")
            if not self._received.endswith(b"\n"):
                return None
            found = SkipSet.of(self._layers, json.loads(self._received))
        except BlockingIOError:
            return None
        except (OSError, EOFError, TypeError, ValueError) as error:
            self._fail(str(error))
            return None
        self._is_busy, self._received = False, b""
        return found

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._end is not None:
            self._end()
        self._process, self._end = None, None
        self._is_busy, self._received = False, b""

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vllm_specext.methods.swift.search.suggestion_process", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the engine
        )
        self._end = weakref.finalize(self, _end, self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def _send(self, line: bytes) -> None:
        """Write ``line`` to the process without waiting. A line that does not fit into the pipe is a failure."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            if os.write(self._process.stdin.fileno(), line) < len(line):
                raise BlockingIOError(f"{len(line)} bytes are too many for its pipe")
            self._is_busy = True
        except OSError as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        """End the process; the next request starts it again, unless this was its last chance."""
        self.close()
        self._failures += 1
        if self._failures == STARTS:
            logger.warning("SWIFT's Bayesian suggestions are over (%s); the search goes on at random.", reason)
        else:
            logger.info("The process of SWIFT's Bayesian suggestions is started again (%s).", reason)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:  # closes the pipes and reaps it
        pass
