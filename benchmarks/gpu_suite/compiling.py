"""Compile the kernels of the parts that time them, on all cores, before they are timed one after another.

Compiling is most of such a part, and the GPU waits meanwhile: on an H200 with 16 cores, five parts took 78 seconds
after 64 in which 15 processes had compiled what they need. Each process goes through its share of a part and calls
once what would be timed; Triton and torch keep what was compiled on disk.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from typing import Any

from benchmarks.gpu_suite.parts import Part

MEASURING = ("attention", "ceilings", "fusion", "small_kernels")
"""The modules that time."""
PAUSE = 0.1


@dataclass(frozen=True)
class Job:
    """A share of a part: what is left of ``everything`` in its module, every ``of``-th from ``first`` on."""

    module: str
    function: str
    everything: str
    first: int
    of: int


SHARES = {
    "tree_attention": ("SHAPES", 8),
    "attention_tiles": ("TILES", 5),
    "latent_attention": ("SHAPES", 4),
    "compaction": ("BATCHES", 1),
    "small_kernels": ("BATCHES", 1),
    "tgf": ("ROWS", 1),
    "tgf_tiles": ("TUNED", 2),
}
"""What a part goes through by name, and among how many processes it is divided."""
KEYWORDS = {"TILES": "tiles"}
"""Of the argument; otherwise it is the first."""


def jobs(parts: Iterable[Part]) -> list[Job]:
    """Those that take longest come first."""
    found = []
    for part in parts:
        if part.name in SHARES:
            everything, of = SHARES[part.name]
            found += [Job(part.module, part.function, everything, first, of) for first in range(of)]
    return sorted(found, key=lambda job: job.everything != "TILES")


def compile_first(parts: Iterable[Part], seconds: float, tell: Callable[[str], None]) -> None:
    """What is not compiled after so many ``seconds`` is compiled when it is timed."""
    listed, begun = jobs(parts), time.monotonic()
    if not listed:
        return
    tell(f"compiling in {len(listed)} processes")
    with get_context("spawn").Pool(min(len(listed), os.cpu_count() or 1), maxtasksperchild=1) as pool:
        running = [pool.apply_async(run, (job,)) for job in listed]
        while not all(each.ready() for each in running) and time.monotonic() < begun + seconds:
            time.sleep(PAUSE)
        done = [each.get() for each in running if each.ready()]
    for problem in filter(None, done):
        tell(problem)
    tell(f"compiled: {len(done)} of {len(listed)} in {time.monotonic() - begun:.0f} s")


def run(job: Job) -> str | None:
    """In a process of its own; an error as a sentence, because the part itself will say more."""
    import torch

    torch.set_num_threads(1)  # there are as many processes as cores
    module: Any = import_module(f"benchmarks.gpu_suite.{job.module}")
    for name in MEASURING:
        import_module(f"benchmarks.gpu_suite.{name}").measure = once  # type: ignore[attr-defined]
    module.copies_for = lambda size: 1
    own = getattr(module, job.everything)[job.first :: job.of]
    function = getattr(module, job.function)
    try:
        for _ in function(**{KEYWORDS[job.everything]: own}) if job.everything in KEYWORDS else function(own):
            pass
    except Exception as error:
        return f"{job.module}.{job.function}: {type(error).__name__}: {str(error)[:200]}"
    return None


def once(*functions: Callable[[], Any], **_: Any) -> Any:
    """In the place of ``timing.measure``: the first of the functions, once."""
    import torch

    from benchmarks.gpu_suite.timing import DEVICE, Timing

    functions[0]()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return Timing(1.0, 1.0, 1.0, "once")
