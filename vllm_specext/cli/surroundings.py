"""What a bug report says about a machine and its environment, without secrets."""

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from vllm_specext.vllm_process import cpu_quota

PLUGINS = "vllm.general_plugins"
PREFIXES = ("VLLM_", "OMP_", "KMP_", "GOMP_", "CUDA_", "NCCL_", "RAY_", "HF_", "TORCH", "PYTORCH_", "TRITON_")
NAMES = ("LD_PRELOAD", "TRANSFORMERS_OFFLINE")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|HEADERS", re.IGNORECASE)
IN_AN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
HIDDEN = "(set, not shown)"
EMPTY = "(set, empty)"


def machine() -> dict[str, str]:
    cores = f"{len(os.sched_getaffinity(0))} visible"
    if (quota := cpu_quota()) is not None:
        cores += f", {quota} allowed by the container"
    return {"system": platform.platform(), "processor": processor(), "cores": cores, "memory": memory()}


def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        names = re.findall(r"(?m)^model name\s*:\s*(.+)$", path.read_text())
    except OSError:
        names = []
    return str(names[0]) if names else platform.machine()


def memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that vLLM and its libraries read, by name. Of a secret only this is said, that it is set."""
    chosen = sorted(name for name in variables if name.startswith(PREFIXES) or name in NAMES)
    return {name: shown(name, variables[name]) for name in chosen}


def shown(name: str, value: str) -> str:
    if SECRET.search(name):
        return HIDDEN
    return IN_AN_ADDRESS.sub("(not shown)@", value) or EMPTY


def plugins() -> dict[str, str]:
    """The installed general plug-ins of vLLM, and where they come from."""
    allowed = os.environ.get("VLLM_PLUGINS")
    found = {}
    for entry in metadata.entry_points(group=PLUGINS):
        distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown distribution"
        left_out = allowed is not None and entry.name not in allowed.split(",")
        found[entry.name] = f"{entry.value}, {distribution}" + (", left out by VLLM_PLUGINS" if left_out else "")
    return found
