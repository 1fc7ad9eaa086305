"""Run an engine that captures, in its own process: ``main(SPEC, OUT)``.

``SPEC``: ``llm`` (arguments of ``capturing_llm``), ``rounds`` (lists of turns, each ``{"name", "ids", "max_tokens"}``,
asked one list after the other and written together; one with ``"after"``, a name, goes on after that turn's answer),
``given`` (texts without a turn), ``sampling``, ``folder`` (for the shard), ``keep_async`` and ``torchvision`` (as for
``runner.py``), ``sabotage``
(``shift_states``: states are kept one position too late; ``lose_a_row``: one row of a step is not kept), ``running``
(turns that are asked before the shard is written and written later, to another), ``abandoned`` (others that are asked
before, and abandoned when one is answered).
``OUT``: the prompts and answers by name, keys of missing rows, requests whose states are kept after all, the number of
preemptions.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.asking import ask
from vllm_specext.methods.capture.kept_rows import StepRows
from vllm_specext.training.data.answers import Turn
from vllm_specext.training.data.row import Row, make_row
from vllm_specext.training.data.turns import conversation_of

TARGET_NAME = "target"
SHARD, LATE_SHARD = "00000.safetensors", "00001.safetensors"


def replace_rows(changed: Callable[[StepRows], StepRows]) -> None:
    from vllm_specext.methods.capture import speculator

    stock = speculator.rows_of
    speculator.rows_of = lambda step, options: changed(stock(step, options))


def shift_states() -> None:
    replace_rows(lambda rows: replace(rows, features=rows.features.roll(1, 0)))


def lose_a_row() -> None:
    """The first position of each step is kept as if it were far away."""
    far = 2**20
    replace_rows(lambda rows: replace(rows, positions=rows.positions.index_fill(0, torch.tensor([0]), far)))


def kept_requests(worker: Any) -> list[str]:
    kept = worker.model_runner.speculator.kept
    return [] if kept is None else kept.requests


def turns_of(asked: list[dict[str, Any]], rows: dict[str, Row]) -> list[Turn]:
    turns = []
    for number, turn in enumerate(asked):
        before = rows[turn["after"]].token_ids.tolist() if "after" in turn else ()
        turns.append(Turn(turn["name"], number, (*before, *turn["ids"]), len(before), turn["max_tokens"]))
    return turns


def main(spec_path: str, out_path: str) -> None:
    # Here, because it sets the environment of an engine's process, and tests import this module.
    from tests.engine.runner import replace_in_vllm

    spec = json.loads(Path(spec_path).read_text())
    replace_in_vllm({key: spec.get(key) for key in ("llm", "keep_async", "torchvision")})
    if spec.get("sabotage"):
        globals()[spec["sabotage"]]()
    from vllm_specext.preparation.answers import CapturingAnswerer
    from vllm_specext.preparation.engine import capturing_llm

    llm = capturing_llm(disable_log_stats=False, **spec["llm"])
    answerer = CapturingAnswerer(llm, spec["sampling"])
    rows: dict[str, Row] = {}
    prompts: dict[str, int] = {}
    for asked in spec["rounds"]:
        turns = turns_of(asked, rows)
        for turn, answer in zip(turns, ask(answerer, turns), strict=True):
            prompts[turn.name] = len(turn.prompt_token_ids)
            ids = (*turn.prompt_token_ids, *answer.token_ids)
            rows[turn.name] = make_row(ids, [place >= prompts[turn.name] for place in range(len(ids))], turn.name)
    begun = turns_of(spec.get("running", []), rows)
    answers = dict(answerer.exchange(begun)) if begun else {}
    if "abandoned" in spec:
        answerer.exchange(turns_of(spec["abandoned"], rows))
        answerer.abandon()
    given = [make_row(ids, [True] * len(ids), f"given-{number}") for number, ids in enumerate(spec.get("given", []))]
    over = {conversation_of(name) for name in rows}
    missing = answerer.write(Path(spec["folder"]) / SHARD, [*rows.values(), *given], over, TARGET_NAME, "text")
    while len(answers) < len(begun):
        answers |= answerer.exchange([])
    late = [
        make_row(ids, [place >= len(turn.prompt_token_ids) for place in range(len(ids))], turn.name)
        for turn in begun
        for ids in [(*turn.prompt_token_ids, *answers[turn.name].token_ids)]
    ]
    over = {conversation_of(row.key) for row in late}
    missing += answerer.write(Path(spec["folder"]) / LATE_SHARD, late, over, TARGET_NAME, "text")
    kept = [name for found in llm.collective_rpc(kept_requests) for name in found]
    preemptions = [metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions"]
    engine = llm.llm_engine.vllm_config
    out = {
        "rows": {key: row.token_ids.tolist() for key, row in rows.items()},
        "prompts": prompts,
        "missing": missing,
        "kept": kept,
        "preemptions": sum(preemptions),
        "async": engine.scheduler_config.async_scheduling,
        "v2": engine.use_v2_model_runner,
    }
    Path(out_path).write_text(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
