"""The process that computes suggestions: it reads a request per line, and answers with a line of variables.

It runs on one thread and at low priority, set before numpy is loaded, and ends with its parent.
"""

import json
import os
import sys
import threading
import time

NICE = 10
"""The process's niceness. It gets a tenth of a core where the engine takes all of them, as on a CPU. At 19 no
suggestion would ever be ready."""

PARENT_INTERVAL = 0.5
"""Seconds between two checks whether the parent is alive."""


def end_with(parent: int) -> None:
    """End this process as soon as ``parent`` is no longer its parent."""
    while os.getppid() == parent:
        time.sleep(PARENT_INTERVAL)
    os._exit(0)


def answer(line: str) -> str:
    from vllm_specext.methods.swift.search.bayes import suggest

    request = json.loads(line)
    points = [
        [int(point, 16) >> variable & 1 for variable in range(request["variables"])] for point in request["points"]
    ]
    return json.dumps(suggest(points, request["scores"], request["skipped"], request["seed"]))


def main() -> None:
    threading.Thread(target=end_with, args=(int(sys.argv[1]),), daemon=True).start()
    os.nice(NICE)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    import vllm_specext.methods.swift.search.bayes  # noqa: F401  (takes seconds, so before the first request)

    for line in sys.stdin:
        # One write for a line, so that its reader sees no half of it; `print` makes two under PYTHONUNBUFFERED.
        os.write(sys.stdout.fileno(), answer(line).encode() + b"\n")


if __name__ == "__main__":
    main()
