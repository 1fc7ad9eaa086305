"""``vllm-specext convert SRC DST --to FORMAT``: a drafter's checkpoint in another format.

Weights and configurations are read as data: nothing in them is executed, and neither vLLM nor the library speculators
is needed.
"""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_specext.cli.lines import show
from vllm_specext.cli.outputs import check_folder, check_new_folder, refusal
from vllm_specext.convert.kinds import To

if TYPE_CHECKING:
    from vllm_specext.convert.conversion import Conversion


def convert(
    src: Annotated[str, typer.Argument(help="The drafter: a folder or a hub id.", show_default=False)],
    dst: Annotated[Path, typer.Argument(help="The folder to write, new or empty.", show_default=False)],
    to: Annotated[
        To,
        typer.Option(
            help="griffin: from EAGLE-1, EAGLE-2 or HASS. speculators: from EAGLE-3, GRIFFIN or MoA. eagle: from "
            "EAGLE-3 of speculators. bfloat16: a drafter in float8 or NVFP4, unquantised.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="The model that the drafter drafts for: a folder or a hub id. Needed for speculators.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a drafter's checkpoint in another format."""
    from vllm_specext.convert.conversion import convert as converted
    from vllm_specext.convert.files import write

    check_new_folder("DST", dst)
    done = converted(src, to, target)
    check_folder("DST", dst)
    try:
        write(dst, done.result)
    except OSError as error:
        raise refusal("DST", dst, error) from None
    report(done, dst, target)


def report(done: "Conversion", dst: Path, target: str | None) -> None:
    """What was read, what was written, and the command that serves it."""
    source, result = done.source, done.result
    show(f"read {source.folder}: {done.format}, {len(source.headers)} tensors")
    show(f"written {dst}: {result.format}, {len(result.tensors)} tensors, {megabytes(dst)}")
    if result.left_out:
        show(f"left out, because nothing reads them: {', '.join(result.left_out)}")
    served = ["vllm", "serve", str(dst) if result.names_target else target or "TARGET"]
    keys = {"method": result.method, "model": None if result.names_target else str(dst)}
    if given := {key: value for key, value in keys.items() if value is not None}:
        served += ["--speculative-config", json.dumps(given)]
    typer.echo(shlex.join(served))  # in one line, to be copied


def megabytes(folder: Path) -> str:
    return f"{sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB"
