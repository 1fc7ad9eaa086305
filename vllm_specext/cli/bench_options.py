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

if TYPE_CHECKING:
    from vllm_specext.bench.workload import Workload

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
        typer.Option(min=1, help="Requests at a time; may be repeated.", show_default="1, 4, 16, or 1, 4 if quick"),
    ] = None
    nodes: Annotated[
        list[int] | None,
        typer.Option(
            help="Size of draft trees; may be repeated.", show_default="8, 24 bundled, else the configuration's"
        ),
    ] = None
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

    def workload(self, rounds: int = 3, needed: tuple[str, ...] = ()) -> "Workload":
        """The prompts and configurations of the run, checked before anything is loaded; the folder ``output`` is made.
        ``rounds`` is the command's default, ``needed`` names packages that not every command needs."""
        require("vllm", "torch", "transformers", "prometheus_client", "matplotlib", "openai", *needed)
        for option, model in (("--target", self.target), ("--eagle", self.eagle)):
            if model is not None:
                check_target(option, model)
        from vllm_specext.bench.configurations import after_stock, chosen
        from vllm_specext.bench.prompt_files import load
        from vllm_specext.bench.workload import Workload
        from vllm_specext.measure.plain import has_stock_row

        configurations = chosen(self.target, self.config or [], self.eagle, self.quick)
        work = Workload(
            self.target,
            after_stock(configurations) if has_stock_row() else configurations,
            load(self.prompts or [], self.prompts_per_task or (3 if self.quick else 20)),
            self.tokens or (40 if self.quick else 96),
            self.rounds or rounds,
            self.arguments or [],
        )
        check_folder("--output", self.output)
        return work


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
