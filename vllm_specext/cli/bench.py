"""``vllm-specext bench``: methods against plain decoding, measured; leaves JSON, CSV, pictures and a summary."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from vllm_specext.cli.bench_options import Options, takes
from vllm_specext.cli.endings import end_servers_with_this
from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm_specext.bench.progress import Progress
    from vllm_specext.bench.results import Results
    from vllm_specext.bench.workload import Workload

console = Console()
app = typer.Typer(
    help="Measure methods against plain decoding and vLLM's own drafts, in turns in one run. What follows -- is handed "
    "to vLLM as arguments of `vllm serve`.",
    no_args_is_help=True,
)


@app.command()
@takes()
def acceptance(options: Options) -> None:
    """Tokens per verification: per depth, per task, per method."""
    work = options.workload()
    from vllm_specext.bench import offline

    measure(work, options, lambda shown: offline.acceptance(work, shown))


@app.command()
@takes("rounds", "concurrency")
def throughput(options: Options) -> None:
    """Tokens per second of an offline engine, by requests at a time."""
    compare("throughput", options, [])


@app.command()
@takes("rounds")
def latency(options: Options) -> None:
    """Time to the first token and per token of a server that is asked one request at a time."""
    work = options.workload()
    from vllm_specext.bench import serving

    end_servers_with_this()
    measure(work, options, lambda shown: serving.latency(work, shown))


@app.command()
@takes("url", "request_rate", "rounds")
def serve(options: Options) -> None:
    """`vllm bench serve`, by requests per second, against servers of its own or running ones."""
    rates = sorted(set(options.request_rate or [float("inf")]))
    if rates[0] <= 0:
        raise ConfigurationError(f"--request-rate is {rates[0]:g}, but must be above 0.")
    work = options.workload(rounds=1, needed=("pandas",))
    running = read_urls(options.url or [])
    if running and (options.config or options.eagle or options.draft_model or options.arguments):
        raise ConfigurationError(
            "--url measures servers that are running, so it takes no --config, --eagle, --draft-model or --."
        )
    from vllm_specext.bench import servers, serving

    if running:
        # A running server knows what it serves.
        target = work.target or servers.model_of(next(iter(running.values()))).root
        work = replace(work, target=target, left_out={})
    end_servers_with_this()
    if running:
        # Nobody knows which programs those servers are, so others cannot be told from them.
        run = partial(serving.serve_running, work, running, rates, options.output)
        measure(work, options, run, watched=False)
    else:
        measure(work, options, partial(serving.serve, work, rates, options.output))


def read_urls(texts: list[str]) -> dict[str, str]:
    """Names and addresses of ``NAME=URL``."""
    found = {}
    for text in texts:
        name, _, url = text.partition("=")
        if not name or not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f'--url is {text!r}, but must be a name, "=" and an address that begins with http.'
            )
        found[name] = url.rstrip("/").removesuffix("/v1")
    return found


@app.command()
@takes("rounds", "concurrency", "nodes")
def sweep(options: Options) -> None:
    """Methods x requests at a time x sizes of draft trees."""
    compare("sweep", options, options.sizes)


def compare(name: str, options: Options, nodes: list[int]) -> None:
    work = options.workload()
    from vllm_specext.bench import offline

    measure(work, options, lambda shown: offline.compare(name, work, options.concurrencies, nodes, shown))


def measure(work: "Workload", options: Options, run: "Callable[[Progress], Results]", *, watched: bool = True) -> None:
    """Show and write the results of ``run``, and what others took of the processor cores where they are ``watched``."""
    from vllm_specext.bench import progress
    from vllm_specext.measure.others import Others

    if not watched:
        with progress.shown(console) as shown:
            results = run(shown)
    else:
        with Others() as others, progress.shown(console) as shown:
            results = run(shown)
        results = replace(results, others=others.told())
    finish(results, work, options)


def finish(results: "Results", work: "Workload", options: Options) -> None:
    """Show the results and write them."""
    from vllm_specext.bench import report, summary
    from vllm_specext.bench.caveats import caveats

    head = report.header(work, results.others)
    console.print(summary.table(results))
    for sentence in caveats(results, head):
        console.print(sentence.replace("**", "").replace("`", ""), markup=False, highlight=False)
    for path in report.write(results, head, options.output):
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
