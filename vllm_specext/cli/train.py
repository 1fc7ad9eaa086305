"""``vllm-specext train METHOD --target MODEL --data DATA --output DIR``: a drafter for a model of the user's.

The plan comes first, then the stages. Exit status: 0 done, 2 refused with a sentence, 3 interrupted with the state
written, 75 something that may not happen again: the same command goes on.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich
import typer

from vllm_specext.cli.extras import require
from vllm_specext.cli.lines import show
from vllm_specext.cli.outputs import check_folder
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.choices import Answers, Numbers, Trained

if TYPE_CHECKING:
    from vllm_specext.training.pipeline.plan import Plan
    from vllm_specext.training.pipeline.settings import RunSettings

REFUSED = 2


def train(
    method: Annotated[Trained, typer.Argument(help="The method whose drafter is trained.", show_default=False)],
    target: Annotated[str, typer.Option(help="The model that is served: a folder or a hub id.", show_default=False)],
    data: Annotated[
        list[str],
        typer.Option(
            help="Chats or text: a .jsonl, .json or .parquet file, a folder of these, or hub:NAME[:SPLIT]; may be "
            "repeated.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option(help="The folder of this training, new or to go on in.", show_default=False)],
    answers: Annotated[
        Answers, typer.Option(help="Whose answers are learnt: the target's own, those in the data, or both.")
    ] = "target",
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a row; 2048, or what the target takes.", show_default=False)
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Most rows to read of the data.", show_default=False)] = None,
    tokens: Annotated[int | None, typer.Option(help="Stop preparing at so many tokens.", show_default=False)] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Of the target's answers; its generation config's by default.", show_default=False),
    ] = None,
    template_flag: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE for the chat template; may be repeated.", show_default=False),
    ] = None,
    dtype: Annotated[Numbers, typer.Option(help="The target's type of numbers, as it is served.")] = "auto",
    tensor_parallel: Annotated[int, typer.Option(help="GPUs that the target needs.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Let the target answer on a Ray cluster, auto or HOST:PORT, whose machines have the same --output.",
            show_default=False,
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Keep features only while they are needed: the target computes them beside the training, once in each "
            "epoch, on GPUs of its own. For a disk that is too small.",
        ),
    ] = False,
    features_of: Annotated[
        Path | None,
        typer.Option(
            help="The folder of another training, whose rows and features are taken, for another recipe or --init.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Training processes; by default one for each GPU that has a share of a step.", show_default=False
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            help="Begin with this drafter: of the same method; for griffin also of EAGLE-1, EAGLE-2 or HASS; for mtp "
            "another module than the target's own.",
            show_default=False,
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help="ours, released (griffin, moa), or a .toml file.")] = "ours",
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of the recipe; may be repeated.", show_default=False),
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="Of the data, for the drafter's card.", show_default=False)
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="tensorboard, wandb or trackio, beside log.jsonl; may be repeated.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Remove what is there, and begin anew.")] = False,
) -> None:
    """Train a drafter for a model: prepare data, train, export, check."""
    values = {
        "method": method,
        "target": target,
        "data": data,
        "answers": answers,
        "max_length": max_length,
        "samples": samples,
        "tokens": tokens,
        "temperature": temperature,
        "dtype": dtype,
        "tensor_parallel": tensor_parallel,
        "ray": ray,
        "stream": stream,
        "init": init,
        "licence": licence,
        "log": log or [],
    }
    try:
        require("torch", "transformers", "accelerate", "datasets", "pyarrow", "matplotlib", *(["ray"] if ray else []))
        if not dry_run:
            require("vllm")
        from vllm_specext.training.pipeline.shown import plan_table  # which loads torch

        others = None if features_of is None else features_of.absolute()
        settings, count, plan = planned(values, template_flag or [], recipe, change or [], processes, output, others)
        rich.print(plan_table(plan, count))
        status = 0 if dry_run else run(settings, count, plan, output.absolute(), anew=restart, features_of=others)
    except ConfigurationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(REFUSED) from None
    raise typer.Exit(status)


def planned(
    values: dict[str, Any],
    flags: list[str],
    recipe: str,
    changes: list[str],
    processes: int | None,
    output: Path,
    features_of: Path | None = None,
) -> tuple["RunSettings", int, "Plan"]:
    """All that was asked for, checked as far as it can be without the target's weights: the settings, the number of
    training processes, and the plan."""
    import torch

    from vllm_specext.drafter_paths import refuse_misread
    from vllm_specext.registry import METHODS
    from vllm_specext.training.pipeline import settings as asked
    from vllm_specext.training.pipeline.data_size import count_rows
    from vllm_specext.training.pipeline.features_of import check_features_of
    from vllm_specext.training.pipeline.folder import PLAN, check_ours
    from vllm_specext.training.pipeline.inputs import begun_with, check_inputs
    from vllm_specext.training.pipeline.methods import TRAINABLE
    from vllm_specext.training.pipeline.plan import make_plan, refuse_small_disk
    from vllm_specext.training.pipeline.target import read_target, refuse_target
    from vllm_specext.training.recipes.named import read_recipe
    from vllm_specext.training.recipes.values import checked

    check_ours(output)
    how = read_recipe(values["method"], recipe, changes)
    values = {**values, "template_flags": asked.flags(flags)}
    if processes is not None and processes < 1:
        raise ConfigurationError(f"--processes is {processes}, but at least 1 is needed.")
    count = processes or asked.default_processes(torch.cuda.device_count(), values, how.packs)
    target = read_target(values["target"])
    values["recipe"] = begun_with(values["method"], how, values["init"], target).model_dump(mode="json")
    values["target"] = target.name
    values["data"] = [located(name) for name in values["data"]]
    values["max_length"] = asked.longest_row(values["max_length"], target.max_length)
    settings = checked(asked.RunSettings, values, "the setting")
    asked.check_stream(settings, count, torch.cuda.device_count())
    method = TRAINABLE[settings.method]
    if stock_method := METHODS[method.serves].options.stock_method:
        refuse_misread("--output", str(output.absolute()), stock_method)
    refuse_target(method.serves, target, settings.tensor_parallel, captures=method.captured is not None)
    check_inputs(settings, target, count)
    plan = make_plan(settings, target, count_rows(settings.data), output, count)
    if features_of is not None:
        check_features_of(features_of, settings.model_dump(mode="json"))
    elif not (output / PLAN).exists():
        refuse_small_disk(plan, output)
    return settings, count, plan


def located(name: str) -> str:
    """An absolute path, because a run may go on from another directory; what is no path stays as it is."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def run(
    settings: "RunSettings", processes: int, plan: "Plan", output: Path, *, anew: bool, features_of: Path | None
) -> int:
    from vllm_specext.training.pipeline.conductor import run_training
    from vllm_specext.training.pipeline.methods import TRAINABLE
    from vllm_specext.training.pipeline.record import make_record
    from vllm_specext.training.pipeline.target import read_target

    check_folder("--output", output)
    target = read_target(settings.target, weights=True)
    if settings.init is None:
        TRAINABLE[settings.method].check_new(target, complete=True)
    record = make_record(settings, processes, target)
    status = run_training(record, plan, output, anew=anew, show=show, features_of=features_of)
    if status == 0:
        show(f"done: vllm serve {output / 'drafter'}")
    return status
