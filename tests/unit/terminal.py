"""The command as a user runs it: in a pipe, and on a terminal of 80 columns."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests import forks

COMMAND = [sys.executable, "-m", "vllm_specext"]
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
    with subprocess.Popen([*COMMAND, *arguments], env=environment(), stdout=its, stderr=subprocess.PIPE) as process:
        os.close(its)
        output = b""
        while piece := read(ours):
            output += piece
        os.close(ours)
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    return Ended(process.returncode, output.decode().replace("\r\n", "\n"), errors)


def shown_on_80_columns(table: Table) -> str:
    """Cut off is what does not fit."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: the other end is closed
        return b""
