"""``vllm-specext bench``: methods against plain decoding, measured; leaves JSON, CSV, pictures and a summary behind."""

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vllm_specext.cli.extras import require
from vllm_specext.cli.launch import check_target
from vllm_specext.cli.outputs import check_folder
from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm_specext.bench.report import Results
    from vllm_specext.bench.workload import Workload

console = Console()
app = typer.Typer(
    help="Measure methods against plain decoding and vLLM's own drafts, in turns in one run. What follows -- is handed "
    "to vLLM as arguments of `vllm serve`.",
    no_args_is_help=True,
)

Output = Annotated[Path, typer.Option(help="Folder for JSON, CSV, pictures and a summary.", show_default=False)]
Target = Annotated[str | None, typer.Option(help="The model to serve: a folder or a hub id; else the bundled one.")]
Config = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=JSON", help="A row's name and its --speculative-config; may be repeated."),
]
Eagle = Annotated[
    str | None,
    typer.Option(
        help="An EAGLE drafter, for vLLM's own chain and for our tree; else the bundled one for the bundled target."
    ),
]
Prompts = Annotated[
    list[Path] | None,
    typer.Option(help="MT-Bench, HumanEval, GSM8K or Spec-Bench file, else the bundled prompts; may be repeated."),
]
PerTask = Annotated[int | None, typer.Option(min=1, help="Most prompts of a task.", show_default="20, or 3 if quick")]
Tokens = Annotated[int | None, typer.Option(min=2, help="Longest answer.", show_default="96, or 40 if quick")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Turns of each.", show_default="3, or 1 for serve")]
Quick = Annotated[bool, typer.Option("--quick", help="Less of everything: minutes on two cores.")]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[-- VLLM ARGUMENTS]", help="As of `vllm serve`.")]
Concurrency = Annotated[
    list[int] | None,
    typer.Option(min=1, help="Requests at a time; may be repeated.", show_default="1, 4, 16, or 1, 4 if quick"),
]
Nodes = Annotated[
    list[int] | None,
    typer.Option(help="Size of draft trees; may be repeated.", show_default="8, 24 bundled, else the configuration's"),
]

Urls = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=URL", help="A running server, in place of new ones; may be repeated, `plain` is the baseline."
    ),
]
Rates = Annotated[
    list[float] | None, typer.Option(help="Requests per second; may be repeated.", show_default="all at once")
]


@app.command()
def acceptance(
    output: Output,
    target: Target = None,
    config: Config = None,
    eagle: Eagle = None,
    prompts: Prompts = None,
    prompts_per_task: PerTask = None,
    tokens: Tokens = None,
    quick: Quick = False,
    arguments: Arguments = None,
) -> None:
    """Tokens per verification: per depth, per task, per method."""
    work = workload(target, config, eagle, prompts, prompts_per_task, tokens, 1, quick, arguments, output)
    from vllm_specext.bench import offline, progress

    with progress.shown(console) as shown:
        results = offline.acceptance(work, shown)
    finish(results, work, output)


@app.command()
def throughput(
    output: Output,
    target: Target = None,
    config: Config = None,
    eagle: Eagle = None,
    prompts: Prompts = None,
    prompts_per_task: PerTask = None,
    tokens: Tokens = None,
    rounds: Rounds = None,
    concurrency: Concurrency = None,
    quick: Quick = False,
    arguments: Arguments = None,
) -> None:
    """Tokens per second of an offline engine, by requests at a time."""
    work = workload(target, config, eagle, prompts, prompts_per_task, tokens, rounds, quick, arguments, output)
    compare("throughput", work, concurrency or at_once(quick), [], output)


@app.command()
def latency(
    output: Output,
    target: Target = None,
    config: Config = None,
    eagle: Eagle = None,
    prompts: Prompts = None,
    prompts_per_task: PerTask = None,
    tokens: Tokens = None,
    rounds: Rounds = None,
    quick: Quick = False,
    arguments: Arguments = None,
) -> None:
    """Time to the first token and per token of a server that is asked one request at a time."""
    work = workload(target, config, eagle, prompts, prompts_per_task, tokens, rounds, quick, arguments, output)
    from vllm_specext.bench import progress, serving

    end_servers_with_this()
    with progress.shown(console) as shown:
        results = serving.latency(work, shown)
    finish(results, work, output)


@app.command()
def serve(
    output: Output,
    target: Target = None,
    config: Config = None,
    eagle: Eagle = None,
    url: Urls = None,
    request_rate: Rates = None,
    prompts: Prompts = None,
    prompts_per_task: PerTask = None,
    tokens: Tokens = None,
    rounds: Rounds = None,
    quick: Quick = False,
    arguments: Arguments = None,
) -> None:
    """`vllm bench serve`, by requests per second, against servers of its own or running ones."""
    rates = sorted(set(request_rate or [float("inf")]))
    if rates[0] <= 0:
        raise ConfigurationError(f"--request-rate is {rates[0]:g}, but must be above 0.")
    work = workload(
        target, config, eagle, prompts, prompts_per_task, tokens, rounds or 1, quick, arguments, output, ("pandas",)
    )
    running = read_urls(url or [])
    if running and (config or eagle or arguments):
        raise ConfigurationError("--url measures servers that are running, so it takes no --config, --eagle or --.")
    from vllm_specext.bench import progress, servers, serving

    if running:
        # A running server knows what it serves.
        work = replace(work, target=target or servers.model_of(next(iter(running.values()))).root)
    end_servers_with_this()
    with progress.shown(console) as shown:
        if running:
            results = serving.serve_running(work, running, rates, output, shown)
        else:
            results = serving.serve(work, rates, output, shown)
    finish(results, work, output)


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


def end_servers_with_this() -> None:
    """The servers are sessions of their own: a signal that ends this process must end them too."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))


@app.command()
def sweep(
    output: Output,
    target: Target = None,
    config: Config = None,
    eagle: Eagle = None,
    prompts: Prompts = None,
    prompts_per_task: PerTask = None,
    tokens: Tokens = None,
    rounds: Rounds = None,
    concurrency: Concurrency = None,
    nodes: Nodes = None,
    quick: Quick = False,
    arguments: Arguments = None,
) -> None:
    """Methods x requests at a time x sizes of draft trees."""
    work = workload(target, config, eagle, prompts, prompts_per_task, tokens, rounds, quick, arguments, output)
    sizes = nodes or ([8, 24] if target is None and not config else [])
    compare("sweep", work, concurrency or at_once(quick), sizes, output)


def at_once(quick: bool) -> list[int]:
    return [1, 4] if quick else [1, 4, 16]


def compare(name: str, work: "Workload", concurrency: list[int], nodes: list[int], output: Path) -> None:
    from vllm_specext.bench import offline, progress

    with progress.shown(console) as shown:
        results = offline.compare(name, work, sorted(set(concurrency)), sorted(set(nodes)), shown)
    finish(results, work, output)


def workload(
    target: str | None,
    config: list[str] | None,
    eagle: str | None,
    prompts: list[Path] | None,
    per_task: int | None,
    tokens: int | None,
    rounds: int | None,
    quick: bool,
    arguments: list[str] | None,
    output: Path,
    needed: tuple[str, ...] = (),
) -> "Workload":
    """What the options say, checked before anything is loaded; ``output`` is made."""
    require("vllm", "torch", "transformers", "prometheus_client", "matplotlib", "openai", *needed)
    for option, model in (("--target", target), ("--eagle", eagle)):
        if model is not None:
            check_target(option, model)
    from vllm_specext.bench.configurations import chosen
    from vllm_specext.bench.prompts import load
    from vllm_specext.bench.workload import Workload

    work = Workload(
        target,
        chosen(target, config or [], eagle, quick),
        load(prompts or [], per_task or (3 if quick else 20)),
        tokens or (40 if quick else 96),
        rounds or 3,
        arguments or [],
    )
    check_folder("--output", output)
    return work


def finish(results: "Results", work: "Workload", output: Path) -> None:
    """Show the results and write them."""
    from vllm_specext.bench import report, summary

    console.print(summary.table(results))
    for path in report.write(results, report.header(work.target, work.arguments, work.tokens), output):
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
