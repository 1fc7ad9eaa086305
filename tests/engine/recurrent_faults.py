"""Deliberate faults in recurrent layers, as those in ``faults.py``."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

Advance = Callable[..., None]


def go_on_as_chains() -> None:
    """States go on along the first rows of each tree, as many as were accepted."""

    def advance(stock: Advance, layers: Any, kept: Any, slots: Any, path: Tensor, counts: Tensor, ends: Any) -> None:
        rows = path[:, :1] + torch.arange(path.shape[1], device=path.device)
        stock(layers, kept, slots, rows.clamp(max=kept.mixed.shape[1] - 1), counts, ends)

    _advance_by(advance)


def stay_behind() -> None:
    """The last accepted node of a longer path changes no state."""

    def advance(stock: Advance, layers: Any, kept: Any, slots: Any, path: Tensor, counts: Tensor, ends: Any) -> None:
        stock(layers, kept, slots, path, (counts - 1).clamp(min=1), ends)

    _advance_by(advance)


def leave_no_states() -> None:
    """Where a block of tokens ends on the way of an accepted path, the cache keeps the state before it."""

    def advance(stock: Advance, layers: Any, kept: Any, slots: Any, path: Tensor, counts: Tensor, ends: Any) -> None:
        stock(layers, kept, slots, path, counts, None)

    _advance_by(advance)


def _advance_by(faulty: Callable[..., None]) -> None:
    from vllm_specext.kernels.recurrent import StateRule

    stock = StateRule.advance

    def advance(self: Any, *arguments: Any) -> None:
        faulty(partial(stock, self), *arguments)

    StateRule.advance = advance  # type: ignore[method-assign]


def convolve_in_order() -> None:
    """The convolution reads the rows before a node's own, and not its ancestors."""
    import vllm_specext.engine.verification.recurrent_trees as recurrent_trees

    def rows_before(visible: Tensor, taps: int) -> Tensor:
        node = torch.arange(visible.shape[1], dtype=torch.int32)[:, None]
        return (node - 1 - torch.arange(taps - 1, dtype=torch.int32)).expand(len(visible), -1, -1)

    recurrent_trees.rows_before = rows_before


def keep_old_states() -> None:
    """A new request goes on from the state that the last one left in its slot."""
    import vllm_specext.cpu_runner.gated_delta as gated_delta

    stock = gated_delta.run

    def run(module: Any, metadata: Any, *rows: Tensor) -> None:
        if metadata.has_initial_state is not None:
            metadata.has_initial_state = torch.ones_like(metadata.has_initial_state)
        stock(module, metadata, *rows)

    gated_delta.run = run


def draft_for_sessions_with_states() -> None:
    """A session's next turn goes on from a state that knows what was cut off."""
    from vllm_specext.engine.scheduler.scheduling import DraftLimits

    stock = DraftLimits.__init__

    def init(self: Any, *args: Any, **others: Any) -> None:
        stock(self, *args, **others)
        self._has_states = False

    DraftLimits.__init__ = init  # type: ignore[method-assign]
