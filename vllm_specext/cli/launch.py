"""What can be wrong with the arguments of ``vllm serve``, found before vLLM is loaded, which takes ten seconds.

vLLM deals with all that is not understood here.
"""

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from vllm_specext import served_drafter, speculative_config
from vllm_specext.cli.ports import check_free, read_port
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.source import check_config, is_path

SPECULATIVE = ("--speculative-config", "-sc")
LISTENS_ELSEWHERE = ("--uds", "--headless", "--data-parallel")
"""Beginnings of options with which the server may not listen on ``--port``."""


def check(arguments: Sequence[str]) -> None:
    """Refuse a target or drafter that does not exist, a bad ``--speculative-config`` and a port that is taken."""
    given = read_options(arguments)
    target = target_of(arguments)
    # vLLM reads nothing and "None" as none.
    texts = [given[name] for name in SPECULATIVE if given.get(name, "") not in ("", "None")]
    for value in map(speculative_config.read, texts or ["null"]):
        served = None if target is None else served_drafter.of_folder(target, value)
        value = value if served is None else served.speculative
        if value is not None:
            speculative_config.check(value)
    if "--port" in given:
        port = read_port(given["--port"])
        if not any(argument.startswith(LISTENS_ELSEWHERE) for argument in arguments):
            check_free(given.get("--host", ""), port)
    if target is not None:
        check_target("the model to serve", target)


def read_options(arguments: Sequence[str]) -> dict[str, str]:
    """Read options with the value after ``=`` or in the next argument, with dashes for underscores. The last of several
    counts. An option without a value gets the next argument as its value, so ask only for those that have one."""
    found = {}
    for argument, following in zip_longest(arguments, arguments[1:]):
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        if equals:
            found[name] = value
        elif following is not None:
            found[name] = following
    return found


def target_of(arguments: Sequence[str]) -> str | None:
    """The model, if it can be told from other arguments without knowing vLLM's arguments."""
    if "--model" in (given := read_options(arguments)):
        return given["--model"]
    return arguments[0] if arguments and not arguments[0].startswith("-") else None


def check_target(what: str, target: str) -> None:
    """Refuse a path where nothing is, and a folder whose ``config.json`` is damaged. Errors call the target
    ``what``."""
    path = Path(target)  # without its own exists(), which raises for a name that is too long
    if is_path(target) and not os.path.exists(path):
        raise ConfigurationError(f"{what} is {target!r}, which does not exist.")
    check_config(path)
