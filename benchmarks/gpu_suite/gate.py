"""Where a part's process waits until it may measure, so that several can start side by side."""

import os
import time
from pathlib import Path

VARIABLE = "GPU_SUITE_GATE"
"""Names the folder by which a part's process and the suite tell each other that it is ready, and that it may go on."""
READY, OPEN = "ready", "open"
PAUSE = 0.05


def wait() -> None:
    """Say that this process is ready to measure, and wait until it may. Nothing where nobody waits for that."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    (Path(folder) / READY).touch()
    while not (Path(folder) / OPEN).exists():
        time.sleep(PAUSE)
