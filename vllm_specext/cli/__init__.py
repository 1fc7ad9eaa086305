"""The ``vllm-specext`` command: one file per sub-command, nothing heavy imported before it is needed.

The user can put a ``ConfigurationError`` right: it is printed as one sentence, and the exit status is 1. The same holds
for a missing package that an extra brings.
"""

import sys
from typing import Annotated, Any

import typer

from vllm_specext.cli import bench
from vllm_specext.cli.bundle import bundle
from vllm_specext.cli.client import client
from vllm_specext.cli.convert import convert
from vllm_specext.cli.demo import demo
from vllm_specext.cli.doctor import doctor
from vllm_specext.cli.extras import absent
from vllm_specext.cli.methods import methods
from vllm_specext.cli.names import PROGRAM
from vllm_specext.cli.pair import pair
from vllm_specext.cli.serve import serve
from vllm_specext.cli.swift import swift
from vllm_specext.cli.train import train
from vllm_specext.cli.version import show_version
from vllm_specext.cli.vocab import vocab
from vllm_specext.errors import ConfigurationError

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of typer's errors about arguments. Where it is defined depends on typer's version."""

app = typer.Typer(
    name=PROGRAM,
    help="Speculative-decoding methods for vLLM: faster answers, the same tokens.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show our version and vLLM's, and exit."),
    ] = False,
) -> None:
    """The options that every sub-command shares."""


# `serve` hands every argument on, `--help` included.
app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="",
)(serve)
app.command()(bundle)
app.command()(client)
app.command()(convert)
app.command()(demo)
app.command()(doctor)
app.command()(methods)
app.command()(pair)
app.command()(swift)
app.command()(train)
app.command()(vocab)
app.add_typer(bench.app, name="bench")


def main() -> None:
    try:
        sys.exit(
            app(
                prog_name=PROGRAM,  # also where it was started as a module: completion is for a command
                standalone_mode=False,  # which would put a box around an error and break its sentence to fit
            )
        )
    except UsageError as error:
        sys.exit(refuse_usage(error))
    except typer.Abort:
        sys.exit("Aborted.")
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        if (known := absent(error)) is None:
            raise
        sys.exit(f"error: {known}")


def refuse_usage(error: Any) -> int:
    """Print what typer says about an argument in one line, after the command's usage. Returns the exit status.

    An error without a message is the help that a command without arguments shows; it is printed already.
    """
    if message := error.format_message():
        usage = "" if error.ctx is None else f"{error.ctx.get_usage()}\n"
        sentence = " ".join(message.split()).rstrip(".")  # choices come in lines of their own
        print(f"{usage}error: {sentence}.", file=sys.stderr)
    return int(error.exit_code)
