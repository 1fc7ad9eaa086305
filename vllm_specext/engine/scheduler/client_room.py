"""Room for clients' trees in steps that others are served in too.

A step drafts as many tokens as suit the load. The tree of a client that drafts has cost a way to the server, and is
verified whole: the step that ends its prompt promises all that a tree may have, and the others in it keep their number,
which is told to the workers with the step.
"""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.client_trees import brought_by

OTHERS = "specext_drafts_of_others"
"""Attribute of a step's ``SchedulerOutput``: tokens to draft for requests that brought no tree. Absent where no tree is
waiting."""


class ClientRoom:
    def __init__(self, most: int) -> None:
        """``most``: drafted tokens of a request in any step."""
        self._most = most
        self._waiting: dict[str, int] = {}
        """Nodes of trees that were not drafted yet, by request."""

    def note(self, request: Request) -> None:
        brought = brought_by(request.sampling_params)
        if brought is not None:
            self._waiting[request.request_id] = len(brought.tree.ids)

    def forget(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)

    def drafted(self, step: SchedulerOutput, requests: Mapping[str, Request]) -> set[str]:
        """Requests of a step whose trees the step before has drafted. Nothing more is drafted for them."""
        scheduled = self._waiting.keys() & step.num_scheduled_tokens.keys()
        done = {name for name in scheduled if _has_answered(requests[name])}
        for name in done:
            self.forget(name)
        return done

    @replaces(
        "vllm.v1.core.sched.output.SchedulerOutput.num_spec_tokens_to_schedule",
        name="room for clients' trees",
        why="a step has one number of drafted tokens for all of its requests",
        how="set to the most in steps after which a client's tree is verified; the number for others goes beside it",
        upstream="none: no number of drafted tokens per request",
        until="vLLM has a number of drafted tokens per request",
        kind="set",
    )
    @replaces(
        "vllm.v1.core.sched.output.SchedulerOutput.specext_drafts_of_others",
        name="number of drafts of others",
        why="workers have to know what is drafted for requests that brought no tree",
        how="added to steps after which a client's tree is verified",
        upstream="none: no number of drafted tokens per request",
        until="vLLM has a number of drafted tokens per request",
        kind="added",
    )
    def make(self, step: SchedulerOutput) -> dict[str, int]:
        """Make room in a step for trees that wait. Most drafted tokens of each of its requests; of none where no tree
        waits."""
        scheduled = step.num_scheduled_tokens.keys()
        if self._waiting.keys().isdisjoint(scheduled):
            return {}
        others = step.num_spec_tokens_to_schedule if scheduled - self._waiting.keys() else 0
        setattr(step, OTHERS, others)
        step.num_spec_tokens_to_schedule = self._most
        return {name: self._waiting.get(name, others) for name in scheduled}


def _has_answered(request: Request) -> bool:
    return bool(request.num_output_tokens or request.num_output_placeholders)


def others_in(step: SchedulerOutput) -> int | None:
    """Tokens to draft for requests of a step that brought no tree; ``None`` where no tree waits."""
    found: Any = getattr(step, OTHERS, None)
    return found
