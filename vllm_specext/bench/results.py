"""The results of a run, and the names of its rows."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specext.bench.configurations import Configuration
from vllm_specext.measure.bundled import MODELS
from vllm_specext.measure.plain import PLAIN, STOCK

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
        "num_speculative_tokens": nodes
        if nodes is not None or config is None
        else config.get("num_speculative_tokens"),
        "speculative_config": config and placeless(json.dumps(config)),
        "model_runner": model_runner,
        "task": task,
    }


def baseline(rows: Sequence[Row]) -> str:
    """The method that speed is relative to. Files that have no row of vLLM as it is are relative to plain decoding."""
    return STOCK if any(row["method"] == STOCK for row in rows) else PLAIN


def placeless(text: str) -> str:
    """The bundled models by their names alone."""
    return text.replace(f"{MODELS}{os.sep}", "bundled:")


def labels(rows: Sequence[Row]) -> list[str]:
    """A name for each row: its method's, with the number of nodes where one method has several."""
    sizes: dict[str, set[int | None]] = {}
    for row in rows:
        sizes.setdefault(row["method"], set()).add(row["num_speculative_tokens"])
    return [
        f"{row['method']}, {row['num_speculative_tokens']} nodes" if len(sizes[row["method"]]) > 1 else row["method"]
        for row in rows
    ]
