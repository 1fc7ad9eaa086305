"""What benchmarks do with their rows that ask the demonstration's held-out prompts and time nothing."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vllm_specext.bench.prompt_files import load
from vllm_specext.bench.prompts import Rendering
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import TARGET

Rows = Iterable[dict[str, Any]]


def show(name: str, title: str, measure: Callable[[Sequence[list[int]], Path], Rows], output: Path | None) -> None:
    """Show the rows that ``measure`` makes of all prompts and an empty folder, and write them to ``name.json`` in the
    folder ``output``, if there is one."""
    rendering = Rendering(str(TARGET))
    try:
        with tempfile.TemporaryDirectory(prefix="vllm-specext-benchmark-") as folder:
            rows = list(measure([rendering.ids(prompt) for prompt in load([], sys.maxsize)], Path(folder)))
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    Console().print(table(title, rows))
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n")


def table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(*(key.replace("_", " ") for key in rows[0]), title=title, box=None)
    for row in rows:
        shown.add_row(*map(str, row.values()))
    return shown
