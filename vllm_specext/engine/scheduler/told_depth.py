"""The depth of a step's trees, on its way from the scheduler to the workers."""

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput

from vllm_specext.engine.changes.replacements import replaces

DEPTH = "specext_depth"
"""Attribute of a step's ``SchedulerOutput``: levels of the trees that are drafted after it. Absent where they are as
deep as they can be."""


@replaces(
    "vllm.v1.core.sched.output.SchedulerOutput.specext_depth",
    name="depth of trees",
    why="workers have to know how deep the trees are that a step drafts; vLLM's drafts are chains",
    how="added to steps whose trees are shallower than they can be",
    upstream="none: vLLM drafts chains only",
    until="vLLM has trees of several depths",
    kind="added",
)
def tell_depth(step: SchedulerOutput, depth: int) -> None:
    setattr(step, DEPTH, depth)


def depth_in(step: SchedulerOutput) -> int | None:
    """Levels of the trees that a step drafts; ``None`` where they are as deep as they can be."""
    found: Any = getattr(step, DEPTH, None)
    return found
