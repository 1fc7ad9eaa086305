"""``vllm-specext bundle TARGET DRAFTER OUT``: what a client needs to draft for a server."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from vllm_specext.cli.extras import require
from vllm_specext.cli.lines import show
from vllm_specext.cli.outputs import check_folder, check_new_folder, refusal


def bundle(
    target: Annotated[str, typer.Argument(help="The model that is served: a folder or a hub id.", show_default=False)],
    drafter: Annotated[str, typer.Argument(help="Its MoA drafter: a folder or a hub id.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="The folder to write, new or empty.", show_default=False)],
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="In which the weights are kept.")
    ] = "bfloat16",
) -> None:
    """Write what a client needs to draft for a server: MoA's drafter, the target's embedding, output layer and
    tokenizer."""
    require("torch", "transformers")
    check_new_folder("OUT", out)
    check_folder("OUT", out)
    import torch

    from vllm_specext.methods.source import drafter_directory
    from vllm_specext.remote.device.make_bundle import make

    folder = drafter_directory(drafter, None, role="DRAFTER")
    try:
        made = make(target, folder, out, getattr(torch, dtype))
    except OSError as error:
        raise refusal("OUT", out, error) from None
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    show(f"written {out}: {size:.1f} MB, drafter {made.fingerprint[:12]}")
    show(
        "It holds the target's embedding and output layer: whether it may be handed on is a question of the target's "
        "licence."
    )
