"""A ``vllm-specext serve`` process on the bundled models, from start to stop.

Promises: ready when ``start`` returns, its output in a log file, gone with all its children after ``stop``. A server
that dies is reported with the last lines of its log.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import ENVIRONMENT, bundled_arguments, on_gpu
from vllm_specext.measure.bundled import TARGET
from vllm_specext.measure.forks import Fork, fork_command
from vllm_specext.measure.memory import CONTAINERS, free_memory
from vllm_specext.measure.speculation import Speculation, counted

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

HOST = "127.0.0.1"
LOOK_SECONDS = 0.2
"""Between looks whether a server is ready."""
PROGRAM = (sys.executable, "-m", "vllm_specext")
START_TIMEOUT = 900.0
"""Seconds until a server that still loads is given up; one takes 20 to 60, four together on two cores 60 to 120."""
MEMORY = 5 << 29
"""Bytes that a server takes on a CPU, cache included: 2.1 GiB were seen."""
SETTLING_SECONDS = 1.2
"""vLLM's engine process keeps a core busy for a second after its last step, in case another request comes."""


class ServerError(ConfigurationError):
    """The server ended, or was not ready in time; the message ends with the last lines of its log."""


class Server:
    """A server of ``target``; ``speculative`` is the ``--speculative-config``, or ``None`` for plain decoding.
    ``environment`` is added to this process's. ``forked``, as by default on a CPU, it finds vLLM imported."""

    def __init__(
        self,
        log: Path,
        speculative: dict[str, Any] | None = None,
        *,
        target: Path = TARGET,
        arguments: Sequence[str] = (),
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        forked: bool | None = None,
    ) -> None:
        self.log = log
        self.forked = not on_gpu() if forked is None else forked
        self.environment = environment or {}
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        serve = ["serve", str(target), "--served-model-name=bundled"]
        serve += [f"--host={HOST}", f"--port={self.port}", *bundled_arguments(), *arguments]
        if speculative is not None:
            serve.append(f"--speculative-config={json.dumps(speculative)}")
        self.command = [*PROGRAM, *serve]
        self.process: Fork | subprocess.Popen[bytes] | None = None
        self._launched = 0.0

    def start(self, tell: Callable[[str], None] = lambda _: None) -> "Server":
        """Return when the server answers; until then ``tell`` hears how long that takes."""
        try:
            self.launch()
            while not self.ready():
                tell(f"{self.age:.0f} s")
                time.sleep(LOOK_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        self._launched = time.monotonic()
        environment = {**os.environ, **ENVIRONMENT, **self.environment}
        self.log.write_bytes(b"")
        if self.forked:
            self.process = fork_command(self.command[len(PROGRAM) :], environment=environment, log=self.log)
            return
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def ready(self) -> bool:
        """Whether the server answers; `ServerError` where it never will."""
        if self._answers():
            return True
        assert self.process is not None
        if self.process.poll() is not None:
            raise ServerError(f"the server ended with status {self.process.returncode}.\n{self.last_lines()}")
        if self.age > START_TIMEOUT:
            raise ServerError(f"the server was not ready after {START_TIMEOUT:.0f} s.\n{self.last_lines()}")
        return False

    @property
    def age(self) -> float:
        """Seconds since the launch."""
        return time.monotonic() - self._launched

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def last_lines(self, count: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").rstrip().splitlines()[-count:])

    def metric(self, name: str) -> float:
        """Sum over the label sets of a Prometheus counter or gauge, 0 when there is none."""
        return sum(sample.value for sample in self.samples() if sample.name == name)

    def samples(self) -> "list[Sample]":
        """Every name and label set with its value, as Prometheus would read them now."""
        from prometheus_client.parser import text_string_to_metric_families

        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return [sample for family in families for sample in family.samples]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def speculation(server: Server) -> Speculation:
    """The drafts that ``server`` has counted since its start."""
    return counted(server.samples())


def start_together(servers: Mapping[str, Server], tell: Callable[[str], None]) -> None:
    """Return when all ``servers`` answer; until then ``tell`` hears which do not yet.

    On a CPU they load at the same time. On a GPU one after another: what one compiles, the next finds on the disk.
    """
    at_once = 1 if on_gpu() else len(servers)
    begun = time.monotonic()
    waiting = list(servers)
    while waiting:
        for name in waiting[:at_once]:
            if servers[name].process is None:
                servers[name].launch()
        tell(f"{time.monotonic() - begun:.0f} s, waiting for {', '.join(waiting)}")
        time.sleep(LOOK_SECONDS)
        for name in waiting[:at_once]:
            try:
                if servers[name].ready():
                    waiting.remove(name)
            except ServerError as error:
                raise ServerError(f"{name}: {error}") from None


def room(limit: Path = CONTAINERS) -> int:
    """The number of servers that fit into the memory that is free, or that a container allows."""
    return free_memory(limit) // MEMORY


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
