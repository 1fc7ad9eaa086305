"""``vllm-specext swift FILE``: a set of layers that SWIFT found and ``swift_save`` wrote, as text and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich
import typer
from rich.markup import escape
from rich.table import Table

from vllm_specext.cli.extras import require
from vllm_specext.cli.lines import show
from vllm_specext.cli.outputs import check_file, refusal
from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm_specext.methods.swift.search.skip_set import SkipSet
    from vllm_specext.methods.swift.search.stored import FoundSet

LAYERS_PER_ROW = 20
KEPT, SKIPPED = "#", "."


def swift(
    file: Annotated[Path, typer.Argument(help="What swift_save wrote.", show_default=False)],
    output: Annotated[Path | None, typer.Option(help="Draw the set and its search to this file.")] = None,
) -> None:
    """Show a set of layers that the method swift found."""
    from vllm_specext.methods.swift.search.stored import read_found

    if not file.is_file():
        raise ConfigurationError(f"{file} is no file.")
    if output is not None:
        require("matplotlib")
        check_file("--output", output)
    found = read_found(file)
    if output is not None:
        draw(output, found)
    rich.print(facts_table(found))
    rich.print(layers_table(found.skipped))
    if output is not None:
        show(f"written to {output}")


def facts_table(found: "FoundSet") -> Table:
    target, skipped = found.target, found.skipped
    table = Table("", "", show_header=False)
    table.add_row("target", escape(target.model))
    table.add_row("its shape", escape(f"{target.architecture}, {target.layers} layers, {target.hidden_size} wide"))
    table.add_row("skipped", f"{len(skipped)} of {2 * target.layers} sub-layers: {skipped}")
    table.add_row("swift_skip_ratio", f"{found.skip_ratio:g}")
    table.add_row("matchness", "never measured" if found.matchness is None else f"{found.matchness:.3f}")
    table.add_row("candidates tried", str(found.steps))
    return table


def layers_table(skipped: "SkipSet") -> Table:
    table = Table("layers", "attention", "MLP", caption=f"{KEPT} kept, {SKIPPED} skipped", caption_justify="left")
    for first in range(0, skipped.layers, LAYERS_PER_ROW):
        row = range(first, min(first + LAYERS_PER_ROW, skipped.layers))
        marks = (marked(row, layers) for layers in (skipped.attention, skipped.mlp))
        table.add_row(f"{row[0]}-{row[-1]}", *marks)
    return table


def marked(layers: range, skipped: tuple[int, ...]) -> str:
    """A mark for each of ``layers``, kept or skipped, in groups of ten."""
    marks = "".join(SKIPPED if layer in skipped else KEPT for layer in layers)
    return " ".join(marks[first : first + 10] for first in range(0, len(marks), 10))


def draw(path: Path, found: "FoundSet") -> None:
    from vllm_specext.methods.swift.search.picture import save_picture

    try:
        save_picture(path, found.skipped, found.history)
    except (OSError, ValueError) as error:
        raise refusal("--output", path, error) from None
