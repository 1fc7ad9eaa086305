"""``vllm-specext demo``: the bundled models with and without drafts, as a table, as bars, as JSON and as a picture."""

import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_specext.cli.endings import end_servers_with_this
from vllm_specext.cli.extras import require
from vllm_specext.cli.names import PROGRAM
from vllm_specext.cli.outputs import check_file
from vllm_specext.cli.ports import HIGHEST, check_free
from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm_specext.demo.run import Row, Tell

console = Console()


def demo(
    every_method: Annotated[bool, typer.Option("--all", help="Every method: takes twice as long.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the rows to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the rows to this file, a PNG.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Only start the GRIFFIN server and leave it running.")] = False,
    port: Annotated[int, typer.Option(min=0, max=HIGHEST, help="Port for --serve; 0 takes a free one.")] = 8000,
) -> None:
    """Serve the bundled models with and without drafts, compare the answers token by token, and measure."""
    from vllm_specext.measure.bundled import TARGET
    from vllm_specext.measure.server import HOST

    if not (TARGET / "config.json").is_file():
        raise ConfigurationError(f"the bundled models are missing: there is no config.json in {TARGET}.")
    require("vllm", "torch", "openai", "prometheus_client")
    if serve:
        check_free(HOST, port)
    else:
        check_outputs(json_path, plot)
    end_servers_with_this()
    if serve:
        leave_running(port)
        return
    from vllm_specext.demo import run
    from vllm_specext.demo.picture import Bars
    from vllm_specext.measure.plain import STOCK

    with progress() as tell:
        rows = run.run(tell, run.LONG if every_method else run.SHORT)
    console.print(as_table(rows), "", Bars(rows), "")
    if json_path is not None:
        run.write(rows, json_path)
        say(f"written to {json_path}")
    if plot is not None:
        say(drawn(rows, plot))
    # vLLM's own kernels round otherwise: where one token is as likely as another, theirs may differ.
    if different := [row.method for row in rows if not row.identical and row.method != STOCK]:
        raise ConfigurationError(f"the answers of {', '.join(different)} differ from those of plain decoding.")
    say(f"\nNext, serve the target with its GRIFFIN drafter to any OpenAI client:\n\n{serve_command()}\n")


def check_outputs(json_path: Path | None, plot: Path | None) -> None:
    if json_path is not None:
        check_file("--json", json_path)
    if plot is not None:
        if plot.suffix != ".png":
            raise ConfigurationError(f"--plot is {str(plot)!r}, but must end in .png.")
        check_file("--plot", plot)


def drawn(rows: "list[Row]", plot: Path) -> str:
    """Draw ``plot``, and return a sentence that says so or says which package is missing."""
    from vllm_specext.demo.picture import draw

    try:
        require("matplotlib")
    except ConfigurationError as error:
        return f"{plot} is not drawn: {error}"
    draw(rows, plot)
    return f"drawn to {plot}"


def serve_command() -> str:
    """The command to type next, in this folder and shell."""
    from vllm_specext.measure.bundled import MODELS

    program = PROGRAM if shutil.which(PROGRAM) else os.path.relpath(Path(sys.executable).with_name(PROGRAM))
    drafter = MODELS / "griffin"
    here = drafter.is_relative_to(Path.cwd())
    return shlex.join([program, "serve", f"./{drafter.relative_to(Path.cwd())}" if here else str(drafter)])


def say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def leave_running(port: int) -> None:
    from vllm_specext.measure.bundled import GRIFFIN_CHAIN
    from vllm_specext.measure.server import Server

    with tempfile.TemporaryDirectory(prefix="vllm-specext-demo-") as folder:
        log = Path(folder) / "server.log"
        with Server(log, GRIFFIN_CHAIN, port=port) as server, progress() as tell:
            server.start(partial(tell, "starting the server"))
            body = json.dumps({"model": "bundled", "prompt": "def fibonacci(n):", "max_tokens": 48, "temperature": 0})
            say(f"Serving at {server.url}/v1 (log: {log}). Ask it something:\n")
            say(f"curl {server.url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}\n")
            tell("serving", "Ctrl-C stops it")
            try:
                while server.process is not None and server.process.poll() is None:
                    time.sleep(0.5)
            except KeyboardInterrupt:
                return
            raise ConfigurationError(f"the server ended.\n{server.last_lines()}")


def as_table(rows: "list[Row]") -> Table:
    from vllm_specext.measure.plain import STOCK, WHAT_STOCK_IS

    table = Table(title=f"The same {rows[0].requests} prompts, one at a time, greedy")
    table.add_column("method", no_wrap=True)
    for column in ("identical", "nodes", "tokens per verification", "tokens/s", "speed-up"):
        table.add_column(column, justify="right", min_width=max(map(len, column.split())))
    for row in rows:
        table.add_row(
            row.method,
            "yes" if row.identical else "[red]NO[/red]",
            f"{row.nodes_per_verification:.1f}",
            f"{row.tokens_per_verification:.2f}",
            f"{row.tokens_per_second:.0f}",
            f"{row.speedup:.2f} ±{row.speedup_error:.2f}" if row is not rows[0] else f"{row.speedup:.2f}",
        )
    notes = ["±: standard error, from turn to turn"]
    if rows[0].method == STOCK:
        notes.append(f"speed-ups are over {STOCK}: {WHAT_STOCK_IS}")
    if looping := rows[0].looping:
        notes.append(f"{looping} of the prompts end in a loop; nodes and tokens per verification leave them out")
    table.caption = "\n".join(notes) or None
    return table


@contextmanager
def progress() -> "Iterator[Tell]":
    """Shows what is being done: a spinner on a terminal, elsewhere a line every ten seconds and one per stage."""
    if console.is_terminal:
        with console.status("") as status:
            yield lambda stage, doing: status.update(f"{stage}  {escape(doing)}"[: console.width - 4])
        return
    last_stage, told = "", 0.0

    def tell(stage: str, doing: str) -> None:
        nonlocal last_stage, told
        if stage != last_stage or time.monotonic() - told > 10:
            last_stage, told = stage, time.monotonic()
            say(f"{stage}  {doing}")

    yield tell
