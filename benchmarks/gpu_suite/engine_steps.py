"""Steps of a running engine: how long they take, and how long the GPU is busy in them, with what.

Prompts are read first and not timed, but for the load in which they arrive. After some steps that are not timed either,
so many of the whole batch are timed between two synchronisations; a profile of a few more says how long the GPU was
busy per step, and so how long it waited for the host.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from benchmarks.gpu_suite.engine_methods import Load
from benchmarks.gpu_suite.timing import DEVICE

WARM_UP_STEPS, SETTLING_STEPS, STEPS, PROFILED_STEPS, STEPS_PER_PROMPT = 10, 300, 40, 8, 8
LISTED_KERNELS = 12
GRAPHS = ("cudaGraphLaunch", "cuGraphLaunch")
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpyAsync", "cudaMemsetAsync", "cuMemcpy", "cuMemset", *GRAPHS)
"""What names of CUDA's functions begin with that give the GPU something to do without waiting for it."""


class Run:
    def __init__(
        self, llm: Any, speculative: dict[str, Any] | None, vocabulary: int, max_model_len: int, chooses: bool = False
    ) -> None:
        """``chooses``: whether the scheduler chooses how much is drafted, and has to learn that of each load first."""
        from benchmarks.step_parts import functions_of
        from benchmarks.stopwatch import Stopwatch

        self.engine = llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.vocabulary, self.max_model_len, self.chooses = vocabulary, max_model_len, chooses
        self.host = Stopwatch()
        for function in functions_of(speculative):
            with suppress(AttributeError, ImportError):  # where vLLM is not as the profile knows it
                self.host.wrap(function)
        self.asked = 0
        self.emitted: dict[str, int] = {}
        """Tokens so far, by request."""
        self.drafted: Counter[str] = Counter()
        """Steps by how much they drafted for each request, "nodes in levels", where the scheduler chooses."""
        self.gone: set[str] = set()
        """Requests that made room for others."""

    def measure(self, load: Load) -> dict[str, Any]:
        self.emitted.clear()
        self.gone.clear()
        self.asked = 0
        for _ in range(load.requests):
            self._ask(load.context)
        while len(self.emitted) < load.requests:  # prompts are being read
            self._step()
        arriving = load.context if load.arriving else None
        # What runs for the first time is loaded or compiled, in steps that read prompts too.
        self._steps(SETTLING_STEPS if self.chooses else WARM_UP_STEPS, arriving)
        self.host.seconds.clear()
        self.drafted.clear()
        before = sum(self.emitted.values())
        taken, steps = self._steps(STEPS, arriving)
        tokens = sum(self.emitted.values()) - before
        step_ms = 1000 * taken / steps
        row = {
            "steps": steps,
            "step_ms": round(step_ms, 3),
            "tokens_per_step": round(tokens / steps / load.requests, 3),
            "tokens_per_second": round(tokens / taken, 1),
            **({"drafted": dict(sorted(self.drafted.items())), "costs": self._costs(load)} if self.chooses else {}),
            "host_ms": {part: round(1000 * spent / steps, 3) for part, spent in sorted(self.host.seconds.items())},
            **self._profile(step_ms, arriving),
        }
        if preempted := sum(request.num_preemptions for request in self.scheduler.requests.values()):
            row["wrong"] = True
            row["message"] = f"{preempted} times a request had to make room for another"
        self.engine.abort_request(list(map(str, range(self.asked))))
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return row

    def _costs(self, load: Load) -> dict[str, list[float]]:
        """How many times as long a step takes with a draft as without, and the standard deviation of its logarithm, as
        the scheduler has measured it at this load and, where it has as many requests, at others before."""
        known = self.scheduler.measured_drafts.choice.costs().get(load.requests.bit_length(), {})
        return {
            f"{size.nodes} in {size.levels}": [round(math.exp(logarithm), 3), round(variance**0.5, 3)]
            for size, (logarithm, variance) in sorted(known.items())
        }

    def _ask(self, context: int) -> None:
        """Another request, named by its number, with a prompt of its own."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        ids = [(17 * self.asked + place) % self.vocabulary for place in range(context)]
        room = self.max_model_len - context - 1
        params = SamplingParams(temperature=0, max_tokens=room, ignore_eos=True, detokenize=False)
        self.engine.add_request(str(self.asked), tokens_input(ids), params)
        self.asked += 1

    def _replace_the_oldest(self, context: int) -> None:
        oldest = min(map(int, self.emitted.keys() - self.gone))
        self.gone.add(str(oldest))
        self.engine.abort_request([str(oldest)])
        self._ask(context)

    def _step(self) -> None:
        if self.chooses:
            size = self.scheduler.measured_drafts.choice.size(len(self.scheduler.running))
            self.drafted[f"{size.nodes} in {size.levels}"] += 1
        for output in self.engine.step():
            self.emitted[output.request_id] = len(output.outputs[0].token_ids)
            if output.finished and output.request_id not in self.gone:
                raise RuntimeError(f"request {output.request_id} ended while it was measured")

    def _steps(self, count: int, arriving: int | None = None) -> tuple[float, int]:
        """Seconds of at least ``count`` steps, and how many they were; the GPU idle before and after. Every few of them
        a prompt of ``arriving`` tokens arrives."""
        _synchronize()
        first, begun = self.host.calls["target"], time.perf_counter()
        next_prompt = first
        while self.host.calls["target"] < first + count:
            if arriving is not None and self.host.calls["target"] >= next_prompt:
                next_prompt += STEPS_PER_PROMPT
                self._replace_the_oldest(arriving)
            self._step()
        _synchronize()
        return time.perf_counter() - begun, self.host.calls["target"] - first

    def _profile(self, step_ms: float, arriving: int | None) -> dict[str, Any]:
        """With one prompt in its steps, where prompts arrive."""
        if DEVICE == "cpu":
            return {}
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            _, steps = self._steps(PROFILED_STEPS, arriving)
        events = profiler.profiler.kineto_results.events()
        of_gpu = [
            (event.name(), event.start_ns(), event.duration_ns())
            for event in events
            if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
        ]
        of_host = (event.name() for event in events if event.device_type() == DeviceType.CPU)
        return busy(of_gpu, steps, step_ms) | host_calls(of_host, steps)


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


def host_calls(names: Iterable[str], steps: int) -> dict[str, float]:
    """From the names of the host's calls of CUDA: what a step launches outside of graphs, and how many graphs."""
    counts = Counter(name.startswith(GRAPHS) for name in names if name.startswith(LAUNCHES))
    if not counts:  # the profiler has not listened to the host
        return {}
    return {
        "host_launches_per_step": round(counts[False] / steps, 1),
        "graphs_per_step": round(counts[True] / steps, 1),
    }


def _synchronize() -> None:
    if DEVICE == "cuda":
        import torch

        torch.cuda.synchronize()
