"""``acceptance``, ``throughput`` and ``sweep``: engines, one beside the baseline at a time, in turns with it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vllm_specext.bench.configurations import Configuration, check_nodes
from vllm_specext.bench.conversations import choose
from vllm_specext.bench.progress import Progress
from vllm_specext.bench.prompts import Rendering
from vllm_specext.bench.results import Results, Row, described
from vllm_specext.bench.rows import over_no_nodes, summarised, vllm_keys
from vllm_specext.bench.workload import Asked, Workload
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import compared_arguments, served
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.sampling import Sampling
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Turn, in_turns, repeated

Point = tuple[Sampling, int]
"""How answers are drawn, and how many requests run at a time."""
AT_ONCE = 16
"""Prompts asked at a time where neither time nor what is drafted counts."""


@dataclass(frozen=True)
class Started:
    """What others are compared with, up and warm, the prompts that count, and where other engines log."""

    engine: EngineProcess
    asked: list[Asked]
    prompts: dict[str, object]
    folder: Path


def acceptance(workload: Workload, progress: Progress) -> Results:
    """Measure acceptance per method and task, one request at a time, because drafts may depend on the load. Every
    method drafts, whether that pays here or not."""
    with started(workload.plain, workload, progress) as run:
        tasks = {task: [one.ids for one in run.asked if one.task == task] for task in (one.task for one in run.asked)}
        progress.begin((1 + len(workload.drafting)) * len(workload.samplings) * len(tasks))

        def answers(engine: EngineProcess, sampling: Sampling) -> dict[str, Turn]:
            progress.doing(f"{engine.name}: asking, {sampling}")
            turns = {}
            for task, ids in tasks.items():
                turns[task] = engine.turn(ids, workload.tokens, 1, sampling=sampling)
                progress.advance()
            return turns

        plain = {sampling: answers(run.engine, sampling) for sampling in workload.samplings}
        rows = []
        for sampling, own in plain.items():
            rows += acceptance_rows(workload.plain, run.engine, sampling, own, own)
        for configuration in (each.always_drafting() for each in workload.drafting):
            progress.doing(f"{configuration.name}: loading")
            with load(configuration, workload, run.folder) as engine:
                for sampling, expected in plain.items():
                    own = answers(engine, sampling)
                    rows += acceptance_rows(configuration, engine, sampling, own, expected)
    return Results("acceptance", run.prompts, rows)


def acceptance_rows(
    configuration: Configuration,
    engine: EngineProcess,
    sampling: Sampling,
    own: dict[str, Turn],
    plain: dict[str, Turn],
) -> list[dict[str, Any]]:
    """A row for each task and one for ``all``."""
    rows = []
    for task, of in [*((task, [task]) for task in own), ("all", list(own))]:
        drafted = sum((own[one].speculation for one in of), Speculation())
        rows.append(
            {
                **described(configuration, engine.facts["model_runner"], sampling, task=task),
                "max_concurrency": 1,
                "identical": all(own[one].tokens == plain[one].tokens for one in of),
                "completed": sum(len(own[one].answers) for one in of),
                "nodes_per_verification": drafted.per_verification(drafted.nodes),
                **vllm_keys(drafted),
            }
        )
    return rows


def compare(
    name: str, workload: Workload, concurrencies: Sequence[int], nodes: Sequence[int], progress: Progress
) -> Results:
    """Measure every configuration with every sampling at every concurrency and, where it drafts trees, with each number
    of ``nodes`` that these can have."""
    check_nodes(workload.configurations, nodes)
    sizes: dict[str, list[int | None]] = {each.name: [*each.sizes(nodes)] or [None] for each in workload.others}
    with started(workload.baseline, workload, progress) as run:
        if (most := max(concurrencies)) > (room := run.engine.facts["max_num_seqs"]):
            raise ConfigurationError(
                f"--concurrency is {most}, but the engine runs at most {room} requests at a time: allow more "
                f"after --, with --max-num-seqs {most}."
            )
        turns = sum(workload.rounds * (1 + len(own)) + len(own) for own in sizes.values())
        points = [(sampling, concurrency) for sampling in workload.samplings for concurrency in concurrencies]
        progress.begin(len(points) * turns)
        rows: list[Row] = []
        seen: dict[Point, list[Turn]] = {point: [] for point in points}
        plain: dict[Point, list[Turn]] = {}
        for configuration in workload.others:
            own = sizes[configuration.name]
            largest = own[-1]
            loaded = configuration if largest is None else configuration.with_nodes(largest)
            progress.doing(f"{configuration.name}: loading")
            with load(loaded, workload, run.folder) as engine:
                of_sizes: dict[int | None, list[Row]] = {size: [] for size in own}
                for point in points:
                    both = f"{configuration.name} and {workload.baseline.name}"
                    progress.doing(f"{both}: {point[1]} at a time, {point[0]}")
                    baseline, of_own = beside_baseline(run, engine, workload, point, own, progress)
                    seen[point] += baseline
                    if configuration is workload.plain:
                        plain[point] = of_own[None]
                    for size, each in of_own.items():
                        facts = described(configuration, engine.facts["model_runner"], point[0], nodes=size)
                        found = summarised(each, baseline, plain.get(point))
                        row = {**facts, "max_concurrency": point[1], **found}
                        of_sizes[size].append(row | (over_no_nodes(each, of_own[0]) if 0 in of_own else {}))
                rows += [row for of_size in of_sizes.values() for row in of_size]
        runner = run.engine.facts["model_runner"]
        first = [
            {
                **described(workload.baseline, runner, point[0]),
                "max_concurrency": point[1],
                **summarised(each, each, plain.get(point)),
            }
            for point, each in seen.items()
        ]
    return Results(name, run.prompts, first + rows)


def beside_baseline(
    run: Started,
    engine: EngineProcess,
    workload: Workload,
    point: Point,
    sizes: Sequence[int | None],
    progress: Progress,
) -> tuple[list[Turn], dict[int | None, list[Turn]]]:
    """The turns of the baseline and, by size, those of ``engine``, as many as there are rounds. Where there are fewer
    prompts than requests at a time, prompts are asked again until there are as many.

    ``engine`` answers all prompts once with each size before that, because passes are compiled, recorded or captured in
    the first steps of a load.
    """
    sampling, concurrency = point
    ids = at_least(concurrency, [one.ids for one in run.asked])
    for size in sizes:
        engine.turn(ids, workload.tokens, concurrency, size, sampling=sampling)
        progress.advance()

    def ask(of: EngineProcess, size: int | None, _: int) -> Turn:
        turn = of.turn(ids, workload.tokens, concurrency, size, sampling=sampling)
        progress.advance()
        return turn

    first = "baseline"
    asks: dict[str | int | None, Callable[[int], Turn]] = {first: partial(ask, run.engine, None)}
    asks |= {size: partial(ask, engine, size) for size in sizes}
    turns = in_turns(range(workload.rounds), asks)
    return turns[first], {size: turns[size] for size in sizes}


def at_least(count: int, prompts: list[list[int]]) -> list[list[int]]:
    """``prompts``, again from the first one on where there are fewer than ``count``."""
    return repeated(prompts, max(count, len(prompts)))


@contextmanager
def started(configuration: Configuration, workload: Workload, progress: Progress) -> Iterator[Started]:
    """Load ``configuration``, which drafts nothing, and choose the prompts."""
    progress.doing(f"{configuration.name}: loading")
    rendering = Rendering(served(workload.target))
    with (
        tempfile.TemporaryDirectory(prefix="vllm-specext-bench-") as folder,
        load(configuration, workload, Path(folder)) as engine,
    ):
        progress.doing(f"{configuration.name}: looking for loops")

        def answering(ids: Sequence[list[int]]) -> Sequence[list[int]]:
            return engine.turn(ids, workload.tokens, AT_ONCE).tokens

        found = choose(workload.prompts, rendering, answering, workload.tokens, engine.facts["max_model_len"])
        yield Started(engine, found.asked, found.told(), Path(folder))


def load(configuration: Configuration, workload: Workload, folder: Path) -> EngineProcess:
    own = compared_arguments(workload.target, workload.arguments, workload.at_once)
    arguments = [f"--model={served(workload.target)}", *own]
    log = folder / f"{configuration.name}.log"
    return EngineProcess(configuration.name, arguments, configuration.speculative, log, configuration.environment)
