"""The options of ``vllm-specext bench``: each is written down once, and a command names those it has beside the common
ones."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from vllm_specext.cli.extras import require
from vllm_specext.cli.launch import check_target
from vllm_specext.cli.outputs import check_folder
from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm_specext.bench.workload import Workload
    from vllm_specext.measure.sampling import Sampling

MOST_AT_ONCE = 256
NOT_COMMON = ("url", "request_rate", "rounds", "concurrency", "nodes")


@dataclass(frozen=True)
class Options:
    """The options of all commands, in the order of the help; one that a command does not have keeps its default."""

    output: Annotated[Path, typer.Option(help="Folder for JSON, CSV, pictures and a summary.", show_default=False)]
    target: Annotated[
        str | None, typer.Option(help="The model to serve: a folder or a hub id; else the bundled one.")
    ] = None
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="A row's name and its --speculative-config; may be repeated."),
    ] = None
    eagle: Annotated[
        str | None,
        typer.Option(
            help="An EAGLE drafter, for vLLM's own chain and for our tree; else the bundled one for the bundled target."
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        typer.Option(help="A small model with the target's tokenizer, for vLLM's own chain and for our tree."),
    ] = None
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL", help="A running server, in place of new ones; may be repeated, `plain` is the baseline."
        ),
    ] = None
    request_rate: Annotated[
        list[float] | None, typer.Option(help="Requests per second; may be repeated.", show_default="all at once")
    ] = None
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="SPEED-Bench, MT-Bench, Spec-Bench, GSM8K, HumanEval or own file, else the bundled prompts; may be "
            "repeated."
        ),
    ] = None
    prompts_per_task: Annotated[
        int | None, typer.Option(min=1, help="Most prompts (rows) of a task.", show_default="20, or 3 if quick")
    ] = None
    tokens: Annotated[int | None, typer.Option(min=2, help="Longest answer.", show_default="96, or 40 if quick")] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="Turns of each.", show_default="3, or 1 for serve")] = None
    concurrency: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=MOST_AT_ONCE,
            help="Requests at a time; may be repeated.",
            show_default="1, 4, 16, or 1, 4 if quick",
        ),
    ] = None
    nodes: Annotated[
        list[int] | None,
        typer.Option(
            help="Size of draft trees; may be repeated.", show_default="8, 24 bundled, else the configuration's"
        ),
    ] = None
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="Temperature of the answers, 0 to 2; may be repeated.", show_default="0: greedy"),
    ] = None
    top_p: Annotated[
        float, typer.Option(help="Above temperature 0, draw from the likeliest tokens of this probability together.")
    ] = 1.0
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: minutes on two cores.")] = False
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM ARGUMENTS]", help="As of `vllm serve`.")
    ] = None

    @property
    def concurrencies(self) -> list[int]:
        return sorted(set(self.concurrency or ([1, 4] if self.quick else [1, 4, 16])))

    @property
    def sizes(self) -> list[int]:
        """The sizes of the draft trees to compare; none where each configuration keeps its own."""
        return sorted(set(self.nodes or ([8, 24] if self.target is None and not self.config else [])))

    @property
    def samplings(self) -> "tuple[Sampling, ...]":
        """One for each temperature, from the lowest on."""
        from vllm_specext.measure.sampling import Sampling

        temperatures = sorted(set(self.temperature or [0.0]))
        if bad := [one for one in temperatures if not 0 <= one <= 2]:
            raise ConfigurationError(f"--temperature is {bad[0]:g}, but must be from 0 to 2.")
        if not 0 < self.top_p <= 1:
            raise ConfigurationError(f"--top-p is {self.top_p:g}, but must be above 0 and at most 1.")
        if self.top_p < 1 and temperatures == [0]:
            raise ConfigurationError(
                f"--top-p is {self.top_p:g}, which needs a --temperature above 0: at 0 the likeliest token is taken."
            )
        return tuple(Sampling(one, 1.0 if one == 0 else self.top_p) for one in temperatures)

    def workload(self, rounds: int = 3, needed: tuple[str, ...] = ()) -> "Workload":
        """The prompts and configurations of the run, checked before anything is loaded; the folder ``output`` is made.
        ``rounds`` is the command's default, ``needed`` names packages that not every command needs."""
        require("vllm", "torch", "transformers", "prometheus_client", "matplotlib", "openai", "psutil", *needed)
        for option, model in (
            ("--target", self.target),
            ("--eagle", self.eagle),
            ("--draft-model", self.draft_model),
        ):
            if model is not None:
                check_target(option, model)
        samplings = self.samplings
        from vllm_specext.bench.configurations import after_stock, chosen, with_seeded_plain
        from vllm_specext.bench.prompt_files import load
        from vllm_specext.bench.vllms_own import left_out
        from vllm_specext.bench.workload import Workload
        from vllm_specext.measure.plain import has_stock_row

        configurations = chosen(self.target, self.config or [], self.eagle, self.quick, self.draft_model)
        missing = left_out({each.name for each in configurations}, self.target is None, self.quick)
        if not all(each.is_greedy for each in samplings):
            configurations = with_seeded_plain(configurations)
        work = Workload(
            self.target,
            after_stock(configurations) if has_stock_row() else configurations,
            load(self.prompts or [], self.prompts_per_task or (3 if self.quick else 20)),
            self.tokens or (40 if self.quick else 96),
            self.rounds or rounds,
            self.arguments or [],
            samplings,
            missing,
            max(self.concurrency or [], default=0),
        )
        check_memory(work)
        check_folder("--output", self.output)
        return work


def check_memory(work: "Workload") -> None:
    """Refuse more requests at a time than the machine has memory for, where the caches' size is known: two engines of
    the bundled target on a CPU."""
    import psutil

    from vllm_specext.measure.arguments import MOST_REQUESTS, cache_bytes, on_gpu

    needed, free = 2 * cache_bytes(work.at_once), psutil.virtual_memory().available
    if work.target is None and work.at_once > MOST_REQUESTS and not on_gpu() and needed > free:
        raise ConfigurationError(
            f"--concurrency is {work.at_once}, for which two engines need {needed >> 20} MiB of keys and values, but "
            f"{free >> 20} MiB of memory are free."
        )


def takes(*more: str) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Make a command of a function of ``Options``, with the common options and ``more`` of ``NOT_COMMON``."""
    hints = get_type_hints(Options, include_extras=True)
    parameters = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(Options)
        if each.name in more or each.name not in NOT_COMMON
    ]

    def decorated(run: Callable[[Options], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            run(Options(**given))

        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorated
