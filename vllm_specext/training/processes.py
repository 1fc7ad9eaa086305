"""What the processes of a training agree on, and the end that a signal asks for."""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from accelerate import Accelerator

INTERRUPTED = 3
"""Exit code of a training that was interrupted and wrote its state."""

NOT_SAVED = 75
"""Exit code of a training that could not write its state; run again, it goes on from the one before."""

LONGEST_WAIT = timedelta(hours=2)
"""Processes wait so long for one another before they are taken for lost: one of them evaluates and writes states, which
may take longer than torch's ten minutes."""


def new_accelerator(device: torch.device, trackers: Sequence[Any] = (), folder: Path | None = None) -> "Accelerator":
    """For a model on ``device``. The launcher's variables say how many processes there are; without, there is one."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

    # The other way, gradients are regrouped after the first step of a process, which changes the order of their sums:
    # a training that goes on would end with other bits.
    same_groups = DistributedDataParallelKwargs(find_unused_parameters=True, gradient_as_bucket_view=True)
    return Accelerator(
        cpu=device.type == "cpu",
        # Steps choose their precision themselves.
        mixed_precision="no",
        kwargs_handlers=[same_groups, InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
        log_with=list(trackers) or None,
        project_dir=folder,
    )


@contextmanager
def ending_at_once() -> Iterator[None]:
    """End this process with the status of a ``SystemExit``, and without Python's own end.

    Threads of the group of processes may still be letting go of tensors, for which they need Python. When that ends
    meanwhile, they abort a process that has done all that it had to.
    """
    try:
        yield
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def is_first_process() -> bool:
    """Whether this one writes what all have made."""
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


def largest(accelerator: "Accelerator", *values: float) -> list[float]:
    """The largest of every value in all processes."""
    if accelerator.num_processes == 1:
        return list(values)
    mine = torch.tensor([values], dtype=torch.float64, device=accelerator.device)
    found: list[float] = accelerator.gather(mine).amax(dim=0).tolist()
    return found


def check_same_weights(accelerator: "Accelerator", parameters: Iterable[Tensor]) -> None:
    """Refuse weights that are not bit by bit the same in every process."""
    if accelerator.num_processes == 1:
        return
    found = accelerator.gather(torch.stack([_checksum(p.detach()) for p in parameters])[None])
    for process, theirs in enumerate(found):
        if not torch.equal(theirs, found[0]):
            raise ConfigurationError(
                f"process {process} has other weights than process 0 after the first step; expected a training step "
                "whose forward has all that touches the model's parameters."
            )


def check_same_place(accelerator: "Accelerator", state: Path | None, steps: int) -> None:
    """Refuse processes that go on from different places."""
    most, least = largest(accelerator, steps, -steps)
    if most != -least:
        raise ConfigurationError(
            f"state {state} is at step {int(most)} for one process and at step {int(-least)} for another; expected a "
            "folder that all processes share."
        )


def _checksum(parameter: Tensor) -> Tensor:
    """A number to which every bit of ``parameter``, and the order of its numbers, matters."""
    x = parameter.double().flatten()
    return x @ torch.linspace(1, 2, len(x), dtype=x.dtype, device=x.device)


def collect_random(accelerator: "Accelerator") -> dict[str, Tensor]:
    """The states of the random generators of all processes, a row for each."""
    device = accelerator.device
    states = {"random": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda_random"] = torch.cuda.get_rng_state(device)
    return {name: accelerator.gather(state[None].to(device)).cpu() for name, state in states.items()}


def restore_random(state: dict[str, Any], process: int) -> None:
    """What `collect_random` collected; a process that there was not before goes on with a seed of its own."""
    if process >= len(state["random"]):
        torch.manual_seed(process)
        return
    # Torch reads the state from the beginning of its storage, so a row has to be copied.
    torch.set_rng_state(state["random"][process].clone())
    if "cuda_random" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda_random"][process].clone())


class Interruption(AbstractContextManager["Interruption"]):
    """Whether SIGTERM or SIGINT came. A second one has its usual effect."""

    def __init__(self, watching: bool = True) -> None:
        self.asked = False
        self.watching = watching and threading.current_thread() is threading.main_thread()
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if self.watching:
            self.before = {name: signal.signal(name, self._note) for name in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: object) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for name, handler in self.before.items():
            signal.signal(name, handler)
        self.before = {}
