"""What a process needs that runs vLLM: threads, a distribution by vLLM's name, errors that a user can put right."""

import errno
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from pydantic import ValidationError

from vllm_specext.distributions import installed
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.source import is_hub_refusal


def set_default_threads() -> None:
    """Let ``OMP_NUM_THREADS`` decide where vLLM's CPU worker would not: it binds a thread to every core it can see.

    vLLM decides unless the user has set the variable, or a container's quota allows fewer cores than are visible.
    """
    visible = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    if quota is not None and quota < visible:
        os.environ.setdefault("OMP_NUM_THREADS", str(quota))
    if "OMP_NUM_THREADS" in os.environ:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> int | None:
    """Whole cores that the control group may use, at least one. ``None`` if there is no limit."""
    try:
        quota, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


@contextmanager
def vllm_distribution() -> Iterator[None]:
    """Make the distribution ``vllm`` visible while the block runs, if only ``vllm-cpu`` is installed."""
    if installed("vllm") is not None or installed("vllm-cpu") is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="vllm-specext-") as folder:
        write_vllm_metadata(Path(folder))
        outer = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, outer)))
        sys.path.append(folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            if outer is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = outer


def write_vllm_metadata(folder: Path) -> None:
    """Copy vllm-cpu's metadata to ``folder`` as metadata of ``vllm``. "+cpu" in the version tells vLLM its platform."""
    text = metadata.distribution("vllm-cpu").read_text("METADATA") or ""
    version = f"{metadata.version('vllm-cpu').partition('+')[0]}+cpu"
    text = re.sub(r"(?m)^Name: .*$", "Name: vllm", text, count=1)
    text = re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1)
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(text, encoding="utf-8")


def users_error(error: BaseException | None, model: str = "the model") -> ConfigurationError | None:
    """The cause of ``error`` that the user can put right: an error of ours, what vLLM says about a value, a model that
    the hub does not give, a port that is taken. The sentence calls the model ``model``."""
    if error is None or isinstance(error, ConfigurationError):
        return error
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = " ".join(first["msg"].removeprefix("Value error, ").split())
        return ConfigurationError(f"{place}: {message}" if place else message)
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return ConfigurationError(f"the server cannot listen: {error.strerror}; --port chooses another port.")
    if is_hub_refusal(error):
        return ConfigurationError(
            f"{model} is no folder that is there, and cannot be fetched from the hub ({type(error).__name__})."
        )
    return users_error(error.__cause__ or error.__context__, model)
