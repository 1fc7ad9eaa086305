"""An engine in a process of its own, which answers one JSON line with another: ``python -m
vllm_specext.bench.engine_process``.

The first line says what to load (``arguments`` as of ``vllm serve``, ``speculative``, the ``--speculative-config``) and
is answered with what was loaded. Every further line is a turn: ``prompts`` as lists of ids, ``tokens`` for each,
``concurrency`` of them at a time, and ``nodes``, the size of the draft trees, or null to leave the schedule alone. What
vLLM prints goes to standard error, so that standard output has the answers alone. It ends with its standard input.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vllm_specext.bench.counters import speculation
from vllm_specext.bench.turns import Answer, Turn
from vllm_specext.cli.serve import set_default_threads, users_error, vllm_distribution
from vllm_specext.engine.replacements import replaces


class Engine:
    def __init__(self, arguments: Sequence[str], speculative: dict[str, Any] | None) -> None:
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
        parsed = EngineArgs.from_cli_args(parser.parse_args(list(arguments)))
        parsed.speculative_config = speculative
        parsed.disable_log_stats = False  # the counters
        self.llm = LLM.from_engine_args(parsed)
        self.engine: Any = self.llm.llm_engine
        self.asked = 0

    def facts(self) -> dict[str, Any]:
        config = self.engine.vllm_config
        return {
            "model_runner": "V2" if config.use_v2_model_runner else "V1",
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
        }

    @replaces(
        "vllm.v1.core.sched.scheduler.Scheduler.dynamic_sd_lookup",
        name="size of trees in a benchmark",
        why="a benchmark compares sizes of trees, and an engine for each would take minutes to start",
        how="set between turns, in the engine process of vllm-specext bench alone",
        upstream="none needed",
        until="always",
        kind="set",
    )
    def set_nodes(self, nodes: int) -> None:
        """As if the schedule had ``nodes`` for every load; for engines whose configuration has a schedule."""
        scheduler = self.engine.engine_core.engine_core.scheduler
        scheduler.dynamic_sd_lookup[:] = [nodes] * len(scheduler.dynamic_sd_lookup)

    def turn(self, prompts: list[list[int]], tokens: int, concurrency: int, nodes: int | None) -> Turn:
        """A request begins when there are fewer than ``concurrency``."""
        from vllm import SamplingParams

        if nodes is not None:
            self.set_nodes(nodes)
        params = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False)
        before = self._counted()
        answers: dict[str, Answer] = {}
        begun: dict[str, float] = {}
        first: dict[str, float] = {}
        names = [f"bench-{self.asked + number}" for number in range(len(prompts))]
        self.asked += len(prompts)
        waiting = list(zip(names, prompts, strict=True))[::-1]
        start = time.perf_counter()
        while len(answers) < len(prompts):
            while waiting and len(begun) - len(answers) < concurrency:
                name, prompt = waiting.pop()
                begun[name] = time.perf_counter()
                self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
            for output in self.engine.step():
                now = time.perf_counter()
                name = output.request_id
                first.setdefault(name, now)
                if output.finished:
                    own = list(output.outputs[0].token_ids)
                    size = len(output.prompt_token_ids)
                    answers[name] = Answer(own, first[name] - begun[name], now - begun[name], size)
        duration = time.perf_counter() - start
        return Turn([answers[name] for name in names], duration, self._counted() - before)

    def _counted(self) -> Any:
        return speculation(self.llm.get_metrics())


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=out, flush=True)

    set_default_threads()
    with vllm_distribution():
        request = json.loads(sys.stdin.readline())
        try:
            engine = Engine(request["arguments"], request["speculative"])
        except Exception as error:
            if ours := users_error(error):
                reply({"error": str(ours)})
                return
            raise
        reply(engine.facts())
        for line in sys.stdin:
            reply(asdict(engine.turn(**json.loads(line))))


if __name__ == "__main__":
    main()
