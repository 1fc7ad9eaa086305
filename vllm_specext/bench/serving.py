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
from vllm_specext.measure.server import SETTLING_SECONDS
from vllm_specext.measure.turns import Turn, in_turns, repeated, spread

Runs = list[dict[str, Any]]


def latency(workload: Workload, progress: Progress) -> Results:
    """Measure latency: one request at a time, streamed."""
    with tempfile.TemporaryDirectory(prefix="vllm-specext-bench-") as name:
        folder = Path(name)
        with started(workload.baseline, workload, folder, progress) as first:
            model = model_of(first.url)
            progress.doing(f"{workload.baseline.name}: looking for loops")
            found = chosen(workload, model, first.url)
            ids = [one.ids for one in found.asked]

            def ask(server: OwnServer, _: int) -> Turn:
                found = turn(server, model, ids, workload.tokens)
                progress.advance()
                return found

            progress.begin(2 * workload.rounds * len(workload.others))
            rows: list[Row] = []
            seen: list[Turn] = []
            plain: list[Turn] | None = None
            for configuration in workload.others:
                with started(configuration, workload, folder, progress) as server:
                    turn(server, model, ids[:1], workload.tokens)
                    progress.doing(f"{configuration.name} and {workload.baseline.name}: one at a time")
                    asks = {each: partial(ask, each) for each in (first, server)}
                    turns = in_turns(range(workload.rounds), asks, settle=SETTLING_SECONDS)
                    if configuration is workload.plain:
                        plain = turns[server]
                    facts = {**described(configuration, server.model_runner), "max_concurrency": 1}
                    rows.append({**facts, **summarised(turns[server], turns[first], plain)})
                    seen += turns[first]
            facts = {**described(workload.baseline, first.model_runner), "max_concurrency": 1}
            rows.insert(0, {**facts, **summarised(seen, seen, plain)})
    return Results("latency", found.told(), rows)


def serve(workload: Workload, rates: Sequence[float], folder: Path, progress: Progress) -> Results:
    """Run ``vllm bench serve`` at every rate against servers that are started here; its JSON stays in ``folder``."""
    with tempfile.TemporaryDirectory(prefix="vllm-specext-bench-") as name:
        logs = Path(name)
        base = workload.baseline
        with started(base, workload, logs, progress) as first:
            load = Load(workload, first.url, logs / "prompts.jsonl", folder, progress)
            progress.begin(2 * workload.rounds * len(rates) * len(workload.others))
            rows: list[Row] = []
            seen: dict[float, Runs] = {rate: [] for rate in rates}
            plain: dict[float, Runs] = {}
            for configuration in workload.others:
                with started(configuration, workload, logs, progress) as server:
                    urls = {base.name: first.url, configuration.name: server.url}
                    for rate in rates:
                        runs = load.in_turns(urls, rate)
                        if configuration is workload.plain:
                            plain[rate] = runs[PLAIN]
                        facts = described(configuration, server.model_runner)
                        rows.append({**facts, **of_runs(runs[configuration.name], runs[base.name], plain.get(rate))})
                        seen[rate] += runs[base.name]
            facts = described(base, first.model_runner)
            first_rows = [{**facts, **of_runs(runs, runs, plain.get(rate))} for rate, runs in seen.items()]
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
        progress.begin(workload.rounds * len(rates) * len(urls))
        rows = []
        for rate in rates:
            runs = load.in_turns(urls, rate)
            for server, own in runs.items():
                facts = described(Configuration(server), None)
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

    def in_turns(self, urls: dict[str, str], rate: float) -> dict[str, Runs]:
        """The results by name of ``urls``, as many as there are rounds."""
        first, *others = sorted(urls, key=lambda name: (name != STOCK, name != PLAIN))

        def ask(name: str, number: int) -> dict[str, Any]:
            self.progress.doing(f"{name}: vllm bench serve, {rate:g} requests per second")
            # The baseline's belongs to the one that it was measured next to.
            beside = f"-beside-{others[0]}" if name == first and name in (PLAIN, STOCK) and others else ""
            result = self.folder / f"{name}{beside}-rate-{rate:g}-round-{number}.json"
            model = model_of(urls[name])
            tokenizer = self.workload.target or model.root
            given = vllm_bench.arguments(
                urls[name], model.name, tokenizer, self.file, self.count, self.workload.tokens, rate, result
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
