"""On what and from what the figures were measured."""

import hashlib
import platform
import re
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DIGEST_LENGTH = 12


def describe() -> dict[str, Any]:
    """GPU, driver and versions; needs a CUDA device."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_mebibytes": properties.total_memory >> 20,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "vllm": _version("vllm"),
    }


def slug(gpu: str) -> str:
    """A folder's name: ``NVIDIA H100 80GB HBM3`` is ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def commit(given: str | None) -> str:
    """``given``, for a copy of the sources without git's folder, else git's own answer."""
    return given or _output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12") or "unknown"


def digest(paths: Iterable[str], root: Path = ROOT) -> str:
    """Of the Python sources under ``paths``, files or folders: what decides whether a figure is out of date."""
    summed = hashlib.sha256()
    for path in paths:
        found = root / path
        for file in [found] if found.is_file() else sorted(found.rglob("*.py")):
            summed.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return summed.hexdigest()[:DIGEST_LENGTH]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
