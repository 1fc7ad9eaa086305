"""What runs leave: a file each, by row and seed. A run whose file is there is not made again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ablation.comparison import Counts
from benchmarks.ablation.rows import Row
from vllm_specext.errors import ConfigurationError

Run = dict[str, Any]
Runs = Mapping[tuple[str, int], Run]
"""By name of the row and seed."""
CONDITIONS = ("steps", "learning_rates", "tokens_per_step", "text", "prompts")
"""What has to be the same for two runs to be compared."""


def path_of(folder: Path, row: Row, seed: int) -> Path:
    return folder / f"{row.name}-{seed}.json"


def write(folder: Path, row: Row, seed: int, run: Run) -> None:
    """All of it or nothing: an interrupted run leaves no file."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{row.name}-{seed}.part"
    part.write_text(json.dumps(run) + "\n", encoding="utf-8")
    part.rename(path_of(folder, row, seed))


def read(folder: Path, rows: Sequence[Row]) -> Runs:
    """All runs of these rows that are in ``folder``. ``ConfigurationError`` where two were made under other
    conditions."""
    found = {}
    for row in rows:
        for path in sorted(folder.glob(f"{row.name}-[0-9]*.json")):
            run = json.loads(path.read_text(encoding="utf-8"))
            if run["row"] == row.name:  # the file of a row "griffin-2-passes" looks like one of "griffin"
                found[row.name, int(run["seed"])] = run
    for run in found.values():
        check_same(next(iter(found.values())), run)
    return found


def check_same(run: Run, other: Run) -> None:
    for name in CONDITIONS:
        if run[name] != other[name]:
            raise ConfigurationError(
                f"{other['row']}, seed {other['seed']}, has {name} {other[name]}, but {run['row']}, seed "
                f"{run['seed']}, has {run[name]}; runs that are compared need the same."
            )


def seeds_of(runs: Runs, row: Row) -> list[int]:
    return sorted(seed for name, seed in runs if name == row.name)


def counts_of(runs: Runs, row: Row, seeds: Sequence[int]) -> Counts:
    return np.array([runs[row.name, seed]["of_each_prompt"] for seed in seeds])
