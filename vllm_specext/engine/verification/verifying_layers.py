"""Which attention layers verify, because they are the target's, and what attends to the prefixes of trees there."""

from typing import Any, NamedTuple

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.verification.prefix_attention import PrefixAttention, prefix_attention

_VERIFIES = "vllm_specext_verifies"


class Verifies(NamedTuple):
    """What the target's layers do otherwise than a drafter's."""

    over_prefixes: PrefixAttention | None
    """What attends to prefixes; ``None``: tree attention."""


def of_target(impl: Any) -> Verifies | None:
    """What is known of a layer's ``impl``; ``None`` where it does not verify."""
    found: Verifies | None = getattr(impl, _VERIFIES, None)
    return found


def over_prefixes(layer: Any) -> PrefixAttention | None:
    """What attends to the prefixes of trees in a ``layer``; ``None``: tree attention."""
    found = of_target(layer.impl)
    return None if found is None else found.over_prefixes


def have_verify(layer: Any, sliding_window: int) -> None:
    """Have a ``layer`` verify, whose ``sliding_window`` is so many positions long (0: there is none)."""
    _set(layer, Verifies(prefix_attention(layer, sliding_window)))


def leave_prefixes_to_tree_attention(layer: Any) -> None:
    """As where there is no other kernel for them."""
    _set(layer, Verifies(None))


@replaces(
    "vllm.v1.attention.backend.AttentionImpl.vllm_specext_verifies",
    name="layers that verify",
    why="a drafter's layers may share the target's metadata, and must not see the rows of trees",
    how="added to the instances of the target's layers",
    upstream="vllm#42121 removed the tree attention backend; asked for in vllm#18327, #37396, #40809",
    until="vLLM verifies trees whose shape differs by request",
    kind="added",
)
def _set(layer: Any, verifies: Verifies) -> None:
    setattr(layer.impl, _VERIFIES, verifies)
