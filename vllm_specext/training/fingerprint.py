"""What tells a target apart, so that features of one are never taken for those of another."""

import hashlib
from pathlib import Path

from vllm_specext.errors import ConfigurationError

PIECE = 2**20
"""Bytes read at the beginning and at the end of a file of weights. Another training changes all weights, and hashing
hundreds of gigabytes would take longer than loading them."""

WEIGHTS = ("*.safetensors", "*.bin")
CONFIG = "config.json"


def fingerprint(folder: Path) -> str:
    """A hash of the target in ``folder``: of its configuration, and of names, sizes and parts of its weights."""
    if not (folder / CONFIG).is_file():
        raise ConfigurationError(f"the target {str(folder)!r} has no {CONFIG}; expected the folder of a model.")
    found = hashlib.sha256((folder / CONFIG).read_bytes())
    for path in sorted(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        size = path.stat().st_size
        found.update(f"\n{path.name} {size}\n".encode())
        with path.open("rb") as file:
            found.update(file.read(PIECE))
            file.seek(max(0, size - PIECE))
            found.update(file.read(PIECE))
    return found.hexdigest()
