"""An engine in this process, which is asked in turns."""

import time
from collections.abc import Sequence
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.measure.sampling import GREEDY, Sampling
from vllm_specext.measure.speculation import Speculation, counted
from vllm_specext.measure.turns import Answer, Turn


class Engine:
    """``arguments`` are those of ``vllm serve``, ``speculative`` is the ``--speculative-config``. Without ``counts``
    vLLM keeps no statistics, which take it some time.

    Needs ``VLLM_ENABLE_V1_MULTIPROCESSING=0``: otherwise vLLM puts the scheduler into another process."""

    def __init__(self, arguments: Sequence[str], speculative: dict[str, Any] | None, counts: bool = True) -> None:
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
        parsed = EngineArgs.from_cli_args(parser.parse_args(list(arguments)))
        parsed.speculative_config = speculative
        parsed.disable_log_stats = not counts
        self.llm = LLM.from_engine_args(parsed)
        self.engine: Any = self.llm.llm_engine
        self.asked = 0

    @property
    def core(self) -> Any:
        """vLLM's engine core, which has the scheduler and the executor."""
        return self.engine.engine_core.engine_core

    @property
    def tokenizer(self) -> Any:
        return self.llm.get_tokenizer()

    @property
    def speculator(self) -> Any:
        return self.core.model_executor.driver_worker.worker.model_runner.speculator

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
        """Draft ``nodes`` at every load, in an engine whose configuration has a schedule."""
        sizes = len(self.core.scheduler.dynamic_sd_lookup)
        self.core.scheduler.dynamic_sd_lookup[:] = [nodes] * sizes

    def turn(
        self,
        prompts: Sequence[list[int]],
        tokens: int,
        concurrency: int,
        nodes: int | None = None,
        ignore_eos: bool = False,
        sampling: Sampling = GREEDY,
    ) -> Turn:
        """Answers of up to ``tokens`` to all ``prompts``; one is begun when fewer than ``concurrency`` run. ``nodes``
        is the size of the draft trees, ``None`` leaves the schedule alone. A prompt's place is its seed."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        if nodes is not None:
            self.set_nodes(nodes)
        params = [
            SamplingParams(**sampling.of(number), max_tokens=tokens, ignore_eos=ignore_eos, detokenize=False)
            for number in range(len(prompts))
        ]
        before = self.counted()
        answers: dict[str, Answer] = {}
        begun: dict[str, float] = {}
        first: dict[str, float] = {}
        names = [f"turn-{self.asked + number}" for number in range(len(prompts))]
        self.asked += len(prompts)
        waiting = list(zip(names, prompts, params, strict=True))[::-1]
        start = time.perf_counter()
        while len(answers) < len(prompts):
            while waiting and len(begun) - len(answers) < concurrency:
                name, prompt, own_params = waiting.pop()
                begun[name] = time.perf_counter()
                self.engine.add_request(name, tokens_input(prompt), own_params)
            for output in self.engine.step():
                now = time.perf_counter()
                name = output.request_id
                first.setdefault(name, now)
                if output.finished:
                    own = list(output.outputs[0].token_ids)
                    size = len(output.prompt_token_ids)
                    answers[name] = Answer(own, first[name] - begun[name], now - begun[name], size)
        duration = time.perf_counter() - start
        return Turn([answers[name] for name in names], duration, self.counted() - before)

    def counted(self) -> Speculation:
        """The drafts since the engine's start; all 0 where it keeps no statistics."""
        return counted(self.llm.get_metrics()) if self.engine.log_stats else Speculation()
