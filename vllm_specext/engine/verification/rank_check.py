"""Notices when tensor-parallel ranks part ways: when they drafted or drew other tokens, or have other trees.

Every rank drafts and draws by itself, from sums that all ranks have. Should they ever differ (another device, another
build, a fault), the ranks verify different trees from then on, and their answers are wrong without any error. So every
so many steps the ranks compare a fingerprint of what they keep for all requests. Nothing waits for it: it is read at
the next comparison, when it has long been there. One rank compares nothing.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from vllm_specext.engine.changes.replacements import replaces

VARIABLE = "VLLM_SPECEXT_RANK_CHECK_STEPS"
STEPS = 128
"""Steps from one comparison to the next. A comparison is one all-reduce of two numbers. Ranks that part ways stay apart
for as long as the request runs, so that a later comparison finds them too."""


class RankCheck:
    """Compares the tensor-parallel ranks of ``group``, vLLM's. All of them must make the same calls."""

    def __init__(self, group: Any, steps: int) -> None:
        self._group = group
        self._steps = steps
        self._count = 0
        self._compared: Tensor | None = None
        """Highest fingerprint and minus the lowest, on the host."""
        self._copied = torch.cuda.Event() if torch.cuda.is_available() else None

    def step(self, *kept: Tensor) -> None:
        """Compare what the ranks have ``kept``, integers, if it is time to. Raises ``RuntimeError`` where they
        differed at the comparison before."""
        if self._group.world_size == 1:
            return
        self._count += 1
        if self._count % self._steps:
            return
        self._read()
        mark = fingerprint(kept)
        extremes = torch.stack((mark, -mark))
        distributed.all_reduce(extremes, distributed.ReduceOp.MAX, group=self._group.device_group)
        if self._compared is None:
            self._compared = torch.zeros(2, dtype=torch.int64, pin_memory=extremes.is_cuda)
        self._compared.copy_(extremes, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def _read(self) -> None:
        if self._compared is None:
            return
        if self._copied is not None:
            self._copied.synchronize()
        highest, minus_lowest = self._compared.tolist()
        if highest != -minus_lowest:
            raise RuntimeError(
                f"tensor-parallel ranks disagree on what was drafted or drawn within the {self._steps} steps before "
                "the last comparison; their answers cannot be trusted. Are all ranks on the same hardware and software?"
            )


def fingerprint(kept: Sequence[Tensor]) -> Tensor:
    """A number below two to the 62nd, which depends on every value and its place."""
    parts = []
    for number, values in enumerate(kept, start=1):
        flat = values.flatten().long()
        place = torch.arange(len(flat), device=flat.device)
        mixed = flat * 0x1B873593CC9E2D51 + place * 0x2545F4914F6CDD1D + number * 0x1F83D9ABFB41BD6B
        mixed = (mixed ^ (mixed >> 29)) * 0x3C79AC492BA7B653
        parts.append((mixed ^ (mixed >> 32)).sum())
    return torch.stack(parts).sum() & (2**62 - 1)


def steps_between() -> int:
    """How many steps there are from one comparison to the next, from the environment; 1 compares at every step."""
    value = os.environ.get(VARIABLE, str(STEPS))
    if not value.isdecimal() or int(value) == 0:
        raise RuntimeError(f"environment variable {VARIABLE} is {value!r}, but must be a positive integer.")
    return int(value)


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.specext_rank_check",
    name="comparison of ranks",
    why="ranks that part ways answer wrongly without any error, and vLLM compares nothing",
    how="added to the runner at its first step with one of our methods: the comparison and its counts",
    upstream="none: vLLM drafts on all ranks and compares nothing",
    until="vLLM notices ranks that part ways",
    kind="added",
)
def check_ranks(runner: Any) -> None:
    """Compare the ranks after a step of vLLM's model ``runner`` with one of our methods, if it is time to."""
    check = getattr(runner, "specext_rank_check", None)
    if check is None:
        from vllm.distributed.parallel_state import get_tp_group

        check = runner.specext_rank_check = RankCheck(get_tp_group(), steps_between())
    check.step(*kept_by(runner))


def kept_by(runner: Any) -> list[Tensor]:
    """What a rank keeps for all request slots: drafted and last drawn tokens and, where it verifies trees, each node's
    parent."""
    states, steps = runner.req_states, getattr(runner.model_state, "steps", None)
    kept = [states.draft_tokens, states.last_sampled_tokens]
    return kept if steps is None else [*kept, steps.trees.topology.parents]
