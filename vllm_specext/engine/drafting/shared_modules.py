"""What a drafter shares with the target, kept apart while a trainer gives the drafter other weights.

A drafter's file may hold the target's embedding and output layer, as they were when it was trained. Loaded into modules
that both have, they would change what the target says.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from vllm_specext.engine.drafting.draft_head import DraftHead
from vllm_specext.engine.drafting.float8_head import Float8Head


class SharedModules:
    def __init__(self, drafter: nn.Module, target: nn.Module) -> None:
        """Of ``drafter``: modules of the ``target``, and copies of output layers."""
        self.are_out = False
        """Whether the drafter is being given weights."""
        targets = {id(module) for module in target.modules()}
        self._places = [
            (parent, name, child)
            for parent in drafter.modules()
            if id(parent) not in targets
            for name, child in parent.named_children()
            if id(child) in targets or isinstance(child, DraftHead | Float8Head)
        ]

    def take_out(self) -> None:
        """Have the drafter take no weights for them, and vLLM leave them alone."""
        self.are_out = True
        self._put([Discarding() for _ in self._places])

    def put_back(self) -> None:
        """Nothing happens where they are not out."""
        if self.are_out:
            self.are_out = False
            self._put([child for _, _, child in self._places])

    def _put(self, modules: Sequence[nn.Module]) -> None:
        for (parent, name, _), module in zip(self._places, modules, strict=True):
            setattr(parent, name, module)


class Discarding(nn.Module):
    """Stands in for a module and drops the weights that are meant for it."""

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """vLLM's hook; the names that it is told were loaded."""
        return {name for name, _ in weights}
