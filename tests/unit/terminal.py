"""The command as a user runs it: in a pipe, and on a terminal of 80 columns."""

import fcntl
import io
import os
import pty
import struct
import termios
from functools import cache
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests import forks
from vllm_specext.measure.forks import PROGRAM

COLUMNS = 80


class Ended(NamedTuple):
    status: int
    stdout: str
    stderr: str


def environment() -> dict[str, str]:
    """This process's, but nothing in it says how wide a terminal is or asks for colours."""
    unwanted = {"COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"}
    return {name: value for name, value in os.environ.items() if name not in unwanted} | {"NO_COLOR": "1"}


@cache
def in_a_pipe(*arguments: str) -> Ended:
    with TemporaryDirectory() as folder:
        done = forks.run_command(*arguments, environment=environment(), streams=Path(folder) / "in_a_pipe")
    return Ended(done.returncode, done.stdout, done.stderr)


def on_a_terminal(*arguments: str) -> Ended:
    """Only stdout is a terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with TemporaryDirectory() as folder:
        stdout, stderr = Path(os.ttyname(its)), Path(folder) / "stderr"
        process = forks.Fork(
            forks.COMMAND, [PROGRAM, arguments], environment=environment(), stdout=stdout, stderr=stderr
        )
        output = b""
        while (code := process.poll()) is None or select([ours], [], [], 0)[0]:
            if select([ours], [], [], 0.05)[0]:
                output += os.read(ours, 65536)
        for end in (ours, its):
            os.close(end)
        return Ended(code, output.decode().replace("\r\n", "\n"), stderr.read_text())


def shown_on_80_columns(table: Table) -> str:
    """Cut off is what does not fit."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()
