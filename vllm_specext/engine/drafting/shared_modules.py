"""What a drafter shares with the target, kept apart while a trainer gives the drafter other weights.

A drafter's file may hold the target's embedding and output layer, as they were when it was trained. Loaded into modules
that both have, they would change what the target says.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from torch import nn

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.drafting.draft_head import DraftHead
from vllm_specext.engine.drafting.float8_head import Float8Head


class SharedModules:
    def __init__(self, drafter: nn.Module, target: nn.Module) -> None:
        """Of ``drafter``: modules of the ``target``, and copies of output layers."""
        self.are_out = False
        """Whether the drafter is being given weights."""
        self._drafter = drafter
        targets = {id(module) for module in target.modules()}
        self._places = [
            (parent, name, child)
            for parent in drafter.modules()
            if id(parent) not in targets
            for name, child in parent.named_children()
            if id(child) in targets or isinstance(child, DraftHead | Float8Head)
        ]
        self._names = {name for _, name, child in self._places if any(True for _ in child.parameters())}

    def take_out(self) -> None:
        """Have the drafter take no weights for them, and vLLM leave them alone."""
        self.are_out = True
        self._put([nn.Module() for _ in self._places])
        self._load_all = leave_out(self._drafter, self._names)

    def put_back(self) -> None:
        """Nothing happens where they are not out."""
        if self.are_out:
            self.are_out = False
            self._put([child for _, _, child in self._places])
            self._load_all()

    def _put(self, modules: Sequence[nn.Module]) -> None:
        for (parent, name, _), module in zip(self._places, modules, strict=True):
            setattr(parent, name, module)


@replaces(
    "vllm.model_executor.models.deepseek_mtp.DeepSeekMTP.load_weights",
    name="weights that a drafter is not given",
    why="some loaders of drafters look for a place for every tensor, and end where there is none",
    how="set on a drafter that a trainer gives weights: tensors for what it shares with the target are left out",
    upstream="none known",
    until="vLLM leaves alone what a drafter shares with the target",
    kind="set",
)
def leave_out(drafter: Any, shared: set[str]) -> Callable[[], None]:
    """Have ``drafter`` load no tensor that names one of the ``shared`` modules, until the result is called."""
    original = drafter.load_weights

    @wraps(original)
    def load_weights(weights: Iterable[tuple[str, Any]], *args: Any, **kwargs: Any) -> Any:
        return original(((name, one) for name, one in weights if shared.isdisjoint(name.split("."))), *args, **kwargs)

    def load_all() -> None:
        del drafter.load_weights

    drafter.load_weights = load_weights
    return load_all
