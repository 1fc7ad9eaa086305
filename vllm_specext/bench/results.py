"""The results of a run, and the names of its rows."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specext.bench.configurations import Configuration
from vllm_specext.measure.bundled import MODELS
from vllm_specext.measure.plain import PLAIN, STOCK
from vllm_specext.measure.sampling import GREEDY, Sampling

Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """``rows`` are measurements with vLLM's keys, ``prompts`` what was asked."""

    name: str
    prompts: dict[str, object]
    rows: list[Row]
    others: dict[str, float] | None = None
    """What others took of the processor cores, where that was watched."""


def described(
    configuration: Configuration,
    model_runner: str | None,
    sampling: Sampling = GREEDY,
    *,
    task: str = "all",
    nodes: int | None = None,
) -> Row:
    """The first columns of a row: which method, with which ``--speculative-config``, on which of vLLM's runners, how
    answers were drawn, and whether they then promise to be those of plain decoding."""
    config = (configuration if nodes is None else configuration.with_nodes(nodes)).speculative
    return {
        "method": configuration.name,
        "num_speculative_tokens": nodes
        if nodes is not None or config is None
        else config.get("num_speculative_tokens"),
        "speculative_config": config and placeless(json.dumps(config)),
        "model_runner": model_runner,
        "task": task,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "same_tokens_promised": sampling.is_greedy or configuration.keeps_samples,
    }


def baseline(rows: Sequence[Row]) -> str:
    """The method that speed is relative to. Files that have no row of vLLM as it is are relative to plain decoding."""
    return STOCK if any(row["method"] == STOCK for row in rows) else PLAIN


def placeless(text: str) -> str:
    """The bundled models by their names alone."""
    return text.replace(f"{MODELS}{os.sep}", "bundled:")


def labels(rows: Sequence[Row], temperatures: bool = False) -> list[str]:
    """A name for each row: its method's, with the number of nodes where one method has several, and with the
    temperature, if asked for, where there are several."""
    sizes: dict[str, set[int | None]] = {}
    for row in rows:
        sizes.setdefault(row["method"], set()).add(row["num_speculative_tokens"])
    suffixes = temperature_suffixes(rows) if temperatures else [""] * len(rows)
    return [
        row["method"] + (f", {row['num_speculative_tokens']} nodes" if len(sizes[row["method"]]) > 1 else "") + suffix
        for row, suffix in zip(rows, suffixes, strict=True)
    ]


def temperature_suffixes(rows: Sequence[Row]) -> list[str]:
    """What tells the temperature of each row, empty where all have the same."""
    varies = len({row.get("temperature") for row in rows}) > 1
    return [f", T={row['temperature']:g}" if varies else "" for row in rows]
