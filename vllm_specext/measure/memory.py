"""How much memory there is."""

from contextlib import suppress
from pathlib import Path

CONTAINERS = Path("/sys/fs/cgroup/memory.max")


def free_memory(limit: Path = CONTAINERS) -> int:
    """Bytes that are free, or that a container allows."""
    import psutil

    free: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no control group, or "max"
        free = min(free, int(limit.read_text()))
    return free
