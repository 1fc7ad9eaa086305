"""The parts ``engine:...``: a step of vLLM on Llama-3-8B's shape with random weights, by method and batch size.

Prompts are read first and not timed. Then so many steps of the whole batch are timed between two synchronisations; a
profile of a few more says how long the GPU was busy per step, with what, and so how long it waited for the host.
Random weights accept nothing, so acceptance is synthetic: vLLM's own mode for its EAGLE, ``synthetic.py`` for ours. The
rates are assumptions; what needs none is ``step_ms`` and the tokens per step from which on a method is faster than
plain decoding.
"""

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite import dummy_models, synthetic
from benchmarks.gpu_suite.timing import DEVICE

BATCHES = (1, 4, 16, 64)
PROMPT_TOKENS = 1024
WARM_UP_STEPS, STEPS, PROFILED_STEPS = 10, 40, 8
MAX_MODEL_LEN = 2048
LISTED_KERNELS = 12
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class Method:
    drafter: str | None = None
    nodes: int = 0
    levels: int = 0
    """Longest path."""
    top_k: int = 1
    rate: float = 0.0
    """Chance that a drafted token is accepted when the one before it was."""

    def config(self, drafter: Path, batches: Iterable[int]) -> dict[str, Any] | None:
        if self.drafter is None:
            return None
        own: dict[str, Any] = {"method": self.drafter, "model": str(drafter), "num_speculative_tokens": self.nodes}
        if self.drafter == "eagle":
            rates = synthetic.unconditional(self.rate, self.nodes)
            return own | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        own["tree_top_k"] = self.top_k
        if self.top_k > 1:
            # The same tree at every load: how trees should shrink is what is to be found out.
            own |= {"tree_depth": self.levels, "num_speculative_tokens_per_batch_size": [[1, max(batches), self.nodes]]}
        return own


METHODS = {
    "plain": Method(),
    "eagle-chain-4": Method("eagle", 4, 4, rate=0.7),
    "griffin-chain-4": Method("griffin", 4, 4, rate=0.7),
    "griffin-tree-16": Method("griffin", 16, 6, top_k=3, rate=0.8),
    "griffin-tree-60": Method("griffin", 60, 6, top_k=10, rate=0.85),
}


def rows(
    name: str,
    size: dummy_models.Size = dummy_models.LLAMA_3_8B,
    batches: Iterable[int] = BATCHES,
    dtype: str = "bfloat16",
    prompt_tokens: int = PROMPT_TOKENS,
    **engine: Any,
) -> Iterator[dict[str, Any]]:
    """A row per batch size; ``engine`` are further arguments of vLLM's ``LLM``."""
    os.environ |= ENVIRONMENT
    if find_spec("flashinfer") is None:
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    method, batches = METHODS[name], tuple(batches)
    from vllm import LLM

    from vllm_specext.plugin import register

    register()  # also where the package is a folder on the path and no entry point announces it
    if method.drafter == "griffin":
        synthetic.accept(method.rate)
    with tempfile.TemporaryDirectory() as folder:
        models = dummy_models.write(Path(folder), size, dtype)
        speculative = method.config(models.get(method.drafter or "", Path()), batches)
        begun = time.perf_counter()
        llm = LLM(
            model=str(models["target"]),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype=dtype,
            speculative_config=speculative,
            enable_prefix_caching=False,
            max_num_seqs=max(batches),
            max_model_len=MAX_MODEL_LEN,
            seed=0,
            **({"cudagraph_capture_sizes": captured(batches, method.nodes)} | engine),
        )
        started = time.perf_counter() - begun
        run = Run(llm, speculative, prompt_tokens, size.vocabulary)
        for batch in batches:
            yield {
                "method": name,
                "requests": batch,
                "start_seconds": round(started, 1),
                "nodes": method.nodes,
                "assumed_tokens_per_step": round(
                    synthetic.tokens_per_step(synthetic.unconditional(method.rate, method.levels)), 3
                ),
                **run.measure(batch),
            }


def captured(batches: Iterable[int], nodes: int) -> list[int]:
    """Numbers of tokens that steps have: of the target, and of a drafter's single rows."""
    return sorted({rows for batch in batches for rows in (batch, batch * (1 + nodes))})


class Run:
    def __init__(self, llm: Any, speculative: dict[str, Any] | None, prompt_tokens: int, vocabulary: int) -> None:
        from benchmarks.step_parts import functions_of
        from benchmarks.stopwatch import Stopwatch

        self.engine = llm.llm_engine
        self.prompt_tokens, self.vocabulary = prompt_tokens, vocabulary
        self.host = Stopwatch()
        for function in functions_of(speculative):
            with suppress(AttributeError, ImportError):  # where vLLM is not as the profile knows it
                self.host.wrap(function)
        self.emitted: dict[str, int] = {}
        """Tokens so far, by request."""

    def measure(self, batch: int) -> dict[str, Any]:
        self.emitted.clear()
        names = [f"{batch}-{request}" for request in range(batch)]
        for request, name in enumerate(names):
            self._add(name, request)
        while len(self.emitted) < batch:  # prompts are being read
            self._step()
        self._steps(WARM_UP_STEPS)
        self.host.seconds.clear()
        before, taken, steps = sum(self.emitted.values()), *self._steps(STEPS)
        tokens = sum(self.emitted.values()) - before
        step_ms = 1000 * taken / steps
        row = {
            "steps": steps,
            "step_ms": round(step_ms, 3),
            "tokens_per_step": round(tokens / steps / batch, 3),
            "tokens_per_second": round(tokens / taken, 1),
            "host_ms": {part: round(1000 * spent / steps, 3) for part, spent in sorted(self.host.seconds.items())},
            **self._profile(step_ms),
        }
        self.engine.abort_request(names)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return row

    def _add(self, name: str, request: int) -> None:
        from vllm import SamplingParams

        prompt = {"prompt_token_ids": [(17 * request + place) % self.vocabulary for place in range(self.prompt_tokens)]}
        room = MAX_MODEL_LEN - self.prompt_tokens - 1
        params = SamplingParams(temperature=0, max_tokens=room, ignore_eos=True, detokenize=False)
        self.engine.add_request(name, prompt, params)

    def _step(self) -> None:
        for output in self.engine.step():
            self.emitted[output.request_id] = len(output.outputs[0].token_ids)
            if output.finished:
                raise RuntimeError(f"request {output.request_id} ended while it was measured")

    def _steps(self, count: int) -> tuple[float, int]:
        """Seconds of at least ``count`` steps, and how many they were; the GPU idle before and after."""
        _synchronize()
        first, begun = self.host.calls["target"], time.perf_counter()
        while self.host.calls["target"] < first + count:
            self._step()
        _synchronize()
        return time.perf_counter() - begun, self.host.calls["target"] - first

    def _profile(self, step_ms: float) -> dict[str, Any]:
        if DEVICE == "cpu":
            return {}
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            _, steps = self._steps(PROFILED_STEPS)
        events = [
            (event.name(), event.start_ns(), event.duration_ns())
            for event in profiler.profiler.kineto_results.events()
            if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
        ]
        return busy(events, steps, step_ms)


def busy(events: Iterable[tuple[str, int, int]], steps: int, step_ms: float) -> dict[str, Any]:
    """From the GPU's activities ``(name, start, duration)``, in nanoseconds: what a step of ``step_ms``, timed without
    the profiler, keeps the GPU busy with. Activities may run side by side."""
    by_name: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    covered, end = 0, 0
    for name, start, duration in sorted(events, key=lambda event: event[1]):
        covered += max(0, start + duration - max(start, end))
        end = max(end, start + duration)
        by_name[name][0] += duration
        by_name[name][1] += 1
    busy_ms = covered / 1e6 / steps
    most = sorted(by_name.items(), key=lambda item: -item[1][0])[:LISTED_KERNELS]
    return {
        "gpu_busy_ms": round(busy_ms, 3),
        "gpu_idle_ms": round(max(0.0, step_ms - busy_ms), 3),
        "gpu_idle_share": round(max(0.0, 1 - busy_ms / step_ms), 3),
        "launches_per_step": round(sum(count for _, count in by_name.values()) / steps, 1),
        "kernels": [
            {"name": name[:100], "ms_per_step": round(spent / 1e6 / steps, 4), "per_step": round(count / steps, 1)}
            for name, (spent, count) in most
        ],
    }


def _synchronize() -> None:
    if DEVICE == "cuda":
        import torch

        torch.cuda.synchronize()
