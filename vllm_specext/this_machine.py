"""This machine and this user: the processor, and a folder for what is worth keeping from one start to the next."""

import os
import platform
import re
import stat
from pathlib import Path


def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model and what it can do, which a virtual machine may restrict."""
    try:
        lines = re.findall(r"(?m)^(?:model name|flags|CPU part|Features)\s*:.*$", path.read_text())
    except OSError:
        lines = []
    return "\n".join(sorted(set(lines))) or f"{platform.machine()} {platform.processor()}"


def cache_folder() -> Path:
    """The plug-in's cache, of this user alone. Raises ``OSError`` where there can be none, and ``RuntimeError`` where
    there is no home."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache") / "vllm-specext"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(folder.lstat()) or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError("the cache folder is not this user's alone")
    return folder


def is_own(found: os.stat_result) -> bool:
    """Whether nobody but this user can write to a file or folder, which is no link."""
    others = stat.S_IWGRP | stat.S_IWOTH
    return found.st_uid == os.geteuid() and not found.st_mode & others and not stat.S_ISLNK(found.st_mode)
