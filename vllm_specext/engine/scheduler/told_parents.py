"""The shape of drafted trees, on its way from the workers to the scheduler, which follows grammars along it."""

from typing import Any

from vllm.v1.outputs import DraftTokenIds

from vllm_specext.engine.changes.replacements import replaces

PARENTS = "specext_parents"
"""Attribute of a step's ``DraftTokenIds``: by request, the parent of each drafted token's node. Absent for chains."""


@replaces(
    "vllm.v1.outputs.DraftTokenIds.specext_parents",
    name="shape of trees",
    why="the scheduler follows a grammar along what was drafted; vLLM's drafts are chains",
    how="added to drafted tokens that go to the scheduler for a grammar, by methods whose target verifies trees",
    upstream="none: vLLM drafts chains only",
    until="vLLM tells its scheduler of trees",
    kind="added",
)
def tell_parents(drafts: DraftTokenIds, parents: list[list[int]]) -> None:
    setattr(drafts, PARENTS, parents)


def parents_in(drafts: DraftTokenIds) -> list[list[int]] | None:
    """``[R][n]``: the parent of node ``i + 1``, whose token is the one drafted at ``i``. The root is node 0,
    and padding its own parent. ``None`` where drafts are chains."""
    found: Any = getattr(drafts, PARENTS, None)
    return found
