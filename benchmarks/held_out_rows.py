"""The command line of benchmarks that ask the demonstration's held-out prompts one at a time and time nothing."""

import argparse
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


def main(name: str, title: str, document: str | None, measure: Callable[[Sequence[list[int]], Path], Rows]) -> None:
    """Show the rows that ``measure`` makes of all prompts and an empty folder, and write them to ``name.json``."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help=f"folder for {name}.json")
    args = parser.parse_args()
    rendering = Rendering(str(TARGET))
    try:
        with tempfile.TemporaryDirectory(prefix="vllm-specext-benchmark-") as folder:
            rows = list(measure([rendering.ids(prompt) for prompt in load([], sys.maxsize)], Path(folder)))
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    Console().print(table(title, rows))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n")


def table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(*(key.replace("_", " ") for key in rows[0]), title=title, box=None)
    for row in rows:
        shown.add_row(*map(str, row.values()))
    return shown
