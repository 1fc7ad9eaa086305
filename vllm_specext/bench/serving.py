"""``latency`` and ``serve``: servers, one beside the baseline at a time, in turns with it."""

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from vllm_specext.bench import vllm_bench
from vllm_specext.bench.configurations import Configuration
from vllm_specext.bench.conversations import choose
from vllm_specext.bench.progress import Progress
from vllm_specext.bench.prompts import Rendering
from vllm_specext.bench.results import Results, Row, described, placeless
from vllm_specext.bench.rows import summarised
from vllm_specext.bench.servers import Model, OwnServer, answers, model_of, turn
from vllm_specext.bench.workload import Chosen, Workload
from vllm_specext.measure.plain import PLAIN, STOCK
from vllm_specext.measure.sampling import Sampling
from vllm_specext.measure.server import SETTLING_SECONDS
from vllm_specext.measure.turns import Turn, in_turns, repeated, spread

Runs = list[dict[str, Any]]
Point = tuple[Sampling, float]
"""How answers are drawn, and requests per second."""


def latency(workload: Workload, progress: Progress) -> Results:
    """Measure latency: one request at a time, streamed."""
    with tempfile.TemporaryDirectory(prefix="vllm-specext-bench-") as name:
        folder = Path(name)
        with started(workload.baseline, workload, folder, progress) as first:
            model = model_of(first.url)
            progress.doing(f"{workload.baseline.name}: looking for loops")
            found = chosen(workload, model, first.url)
            ids = [one.ids for one in found.asked]

            def ask(server: OwnServer, sampling: Sampling, _: int) -> Turn:
                found = turn(server, model, ids, workload.tokens, sampling)
                progress.advance()
                return found

            progress.begin(2 * workload.rounds * len(workload.samplings) * len(workload.others))
            rows: list[Row] = []
            seen: dict[Sampling, list[Turn]] = {sampling: [] for sampling in workload.samplings}
            plain: dict[Sampling, list[Turn]] = {}
            for configuration in workload.others:
                with started(configuration, workload, folder, progress) as server:
                    turn(server, model, ids[:1], workload.tokens)
                    for sampling in workload.samplings:
                        both = f"{configuration.name} and {workload.baseline.name}"
                        progress.doing(f"{both}: one at a time, {sampling}")
                        asks = {each: partial(ask, each, sampling) for each in (first, server)}
                        turns = in_turns(range(workload.rounds), asks, settle=SETTLING_SECONDS)
                        if configuration is workload.plain:
                            plain[sampling] = turns[server]
                        facts = {**described(configuration, server.model_runner, sampling), "max_concurrency": 1}
                        rows.append({**facts, **summarised(turns[server], turns[first], plain.get(sampling))})
                        seen[sampling] += turns[first]
            base = [
                {
                    **described(workload.baseline, first.model_runner, sampling),
                    "max_concurrency": 1,
                    **summarised(turns, turns, plain.get(sampling)),
                }
                for sampling, turns in seen.items()
            ]
    return Results("latency", found.told(), base + rows)


def serve(workload: Workload, rates: Sequence[float], folder: Path, progress: Progress) -> Results:
    """Run ``vllm bench serve`` at every rate against servers that are started here; its JSON stays in ``folder``."""
    with tempfile.TemporaryDirectory(prefix="vllm-specext-bench-") as name:
        logs = Path(name)
        base = workload.baseline
        with started(base, workload, logs, progress) as first:
            load = Load(workload, first.url, logs / "prompts.jsonl", folder, progress)
            points = [(sampling, rate) for sampling in workload.samplings for rate in rates]
            progress.begin(2 * workload.rounds * len(points) * len(workload.others))
            rows: list[Row] = []
            seen: dict[Point, Runs] = {point: [] for point in points}
            plain: dict[Point, Runs] = {}
            for configuration in workload.others:
                with started(configuration, workload, logs, progress) as server:
                    urls = {base.name: first.url, configuration.name: server.url}
                    for point in points:
                        runs = load.in_turns(urls, point)
                        if configuration is workload.plain:
                            plain[point] = runs[PLAIN]
                        facts = described(configuration, server.model_runner, point[0])
                        rows.append({**facts, **of_runs(runs[configuration.name], runs[base.name], plain.get(point))})
                        seen[point] += runs[base.name]
            first_rows = [
                {**described(base, first.model_runner, point[0]), **of_runs(runs, runs, plain.get(point))}
                for point, runs in seen.items()
            ]
    return Results("serve", load.prompts, first_rows + rows)


def serve_running(
    workload: Workload, urls: dict[str, str], rates: Sequence[float], folder: Path, progress: Progress
) -> Results:
    """Run ``vllm bench serve`` at every rate against servers that are up. ``urls`` has their addresses by name; the one
    named ``plain`` is what the others are compared with, the one named ``plain-stock``, where there is one, what their
    speed is relative to."""
    with tempfile.TemporaryDirectory(prefix="vllm-specext-bench-") as name:
        first = next(urls[one] for one in (PLAIN, STOCK, *urls) if one in urls)
        load = Load(workload, first, Path(name) / "prompts.jsonl", folder, progress)
        points = [(sampling, rate) for sampling in workload.samplings for rate in rates]
        progress.begin(workload.rounds * len(points) * len(urls))
        rows = []
        for point in points:
            runs = load.in_turns(urls, point)
            for server, own in runs.items():
                facts = described(Configuration(server), None, point[0])
                rows.append({**facts, **of_runs(own, runs.get(STOCK, runs.get(PLAIN)), runs.get(PLAIN))})
    return Results("serve", load.prompts, rows)


class Load:
    """The prompts that fit, in a file for ``vllm bench serve``."""

    def __init__(self, workload: Workload, url: str, file: Path, folder: Path, progress: Progress) -> None:
        self.workload, self.file, self.folder, self.progress = workload, file, folder / "vllm", progress
        self.folder.mkdir(parents=True, exist_ok=True)
        model = model_of(url)
        found = chosen(workload, model, url, keep_loops=True)
        self.count = len(found.asked)
        self.prompts = found.told()
        file.write_text("".join(json.dumps({"prompt": one.text}) + "\n" for one in found.asked), encoding="utf-8")

    def in_turns(self, urls: dict[str, str], point: Point) -> dict[str, Runs]:
        """The results by name of ``urls``, as many as there are rounds."""
        sampling, rate = point
        drawn = "" if sampling.is_greedy else f"-temperature-{sampling.temperature:g}"
        first, *others = sorted(urls, key=lambda name: (name != STOCK, name != PLAIN))

        def ask(name: str, number: int) -> dict[str, Any]:
            self.progress.doing(f"{name}: vllm bench serve, {rate:g} requests per second")
            # The baseline's belongs to the one that it was measured next to.
            beside = f"-beside-{others[0]}" if name == first and name in (PLAIN, STOCK) and others else ""
            result = self.folder / f"{name}{beside}-rate-{rate:g}{drawn}-round-{number}.json"
            model = model_of(urls[name])
            tokenizer = self.workload.target or model.root
            tokens = self.workload.tokens
            given = vllm_bench.arguments(
                urls[name], model.name, tokenizer, self.file, self.count, tokens, rate, result, sampling
            )
            found = vllm_bench.run(given, result)
            self.progress.advance()
            return found

        return in_turns(range(1, 1 + self.workload.rounds), {name: partial(ask, name) for name in urls})


def of_runs(own: Runs, baseline: Runs | None, plain: Runs | None = None) -> Row:
    """vLLM's keys, numbers as the medians of the rounds, and the speed-up of the median time to an answer's end over
    that of the ``baseline``'s run next to it. ``plain``: the runs of plain decoding, where it is not the baseline."""
    row: Row = {key: value for key, value in own[0].items() if key not in vllm_bench.LISTS}
    for key, value in row.items():
        if isinstance(value, float):
            row[key] = statistics.median(run[key] for run in own)
        elif isinstance(value, str):
            row[key] = placeless(value)
    row["rounds"] = len(own)
    if baseline is None:
        return row
    expected = baseline if plain is None else repeated(plain, len(own))
    key = "median_e2el_ms"
    speedup = spread([other[key] / mine[key] for mine, other in zip(own, baseline, strict=True)])
    texts = "generated_texts"
    return {
        "identical": all(mine[texts] == other[texts] for mine, other in zip(own, expected, strict=True)),
        "speedup": speedup.median,
        "speedup_lowest": speedup.lowest,
        "speedup_highest": speedup.highest,
        **row,
    }


def chosen(workload: Workload, model: Model, url: str, keep_loops: bool = False) -> Chosen:
    """The turns that count; the server at ``url``, which decodes plainly, gives the answers that chats go on with."""
    rendering = Rendering(workload.target or model.root)

    def answering(ids: Sequence[list[int]]) -> Sequence[list[int]]:
        return answers(url, model, ids, workload.tokens)

    return choose(workload.prompts, rendering, answering, workload.tokens, model.max_model_len, keep_loops)


@contextmanager
def started(configuration: Configuration, workload: Workload, folder: Path, progress: Progress) -> Iterator[OwnServer]:
    log = folder / f"{configuration.name}.log"
    progress.doing(f"{configuration.name}: loading the server")
    server = OwnServer(configuration, workload.target, workload.arguments, log)
    with server:
        server.start()
        yield server
