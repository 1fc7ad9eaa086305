"""Times the scheduler's steps, and drafts as much as gives the most tokens per second.

The scheduler decides for every worker how much is drafted, so this is the one place that can decide for all of
them at once. Drafting less or more never changes the output.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence

from vllm.v1.core.sched.output import SchedulerOutput

from vllm_specext.engine.scheduler.client_room import others_in
from vllm_specext.engine.scheduler.kept_costs import KeptCosts
from vllm_specext.engine.scheduler.told_depth import depth_in, tell_depth
from vllm_specext.tree.budget import UNMEASURED, TreeShape
from vllm_specext.tree.draft_choice import Change, DraftChoice
from vllm_specext.tree.draft_size import DraftSize, draft_sizes

logger = logging.getLogger(f"vllm.{__name__}")  # a child of vLLM's logger, whose handlers and level it shares

SLOPE = {"cpu": 0.25, "cuda": 0.1}
"""By device type: the guess of what a level of a draft and its row cost, in steps without drafts."""

KEEP = 120.0
"""Seconds of service between two times that what steps cost is kept."""

QUIET = 10.0
"""Seconds between two lines in the log on the same number of running requests."""


class MeasuredDrafts:
    def __init__(
        self,
        lookup: list[int],
        sizes: Sequence[int],
        full: TreeShape | None,
        any_depth: bool,
        device_type: str,
        kept: KeptCosts,
    ) -> None:
        """``lookup``: tokens to draft by number of running requests, the most at first, changed in place; one of
        ``sizes`` each. ``full``: the largest tree, ``None`` where drafts are chains. ``any_depth``: whether the depth
        of trees is chosen too. ``kept``: what earlier starts have measured."""
        device_type = device_type if device_type in UNMEASURED else "cuda"
        self._lookup, self._full = lookup, full
        self._kept, self._since = kept, time.perf_counter()
        first, slope = UNMEASURED[device_type][0], SLOPE[device_type]
        known = kept.read()
        if known:
            logger.info("What steps with drafts take is known from an earlier start with the same settings.")
        self.choice = DraftChoice(tuple(lookup), draft_sizes(sizes, full, any_depth), first, slope, known)
        self._before: float | None = None
        """When the step before ended, if the time since then is that of the next one."""
        self._had_room = False
        """Whether the step before made room for clients' trees."""
        self._said: dict[int, float] = {}
        """When the log last told of a load, by its first number of requests."""
        self.follow()

    def note(self, scheduled: SchedulerOutput, names: Sequence[str], sampled: Sequence[Sequence[int]]) -> None:
        """Take note that a step that was ``scheduled`` has ended; ``sampled`` are the tokens of each request, in the
        order of ``names``."""
        now, requests = time.perf_counter(), len(scheduled.num_scheduled_tokens)
        asked, others = self._asked_of(scheduled), others_in(scheduled)
        had_room, self._had_room = self._had_room, others is not None
        before, self._before = self._before, now if requests else None
        if not requests:
            return
        prompts = _prompts(scheduled)
        if had_room or self._had_room or len(prompts) == requests:
            # A client's tree is drafted after one step and verified in the next: neither says what our drafts bring.
            # Nor does a step in which all read their prompts.
            self._before = None if self._had_room else self._before
            self.choice.skip(requests, asked)
            self._follow_if_moved()
            return
        # vLLM 0.33 drafts nothing where all requests end with the step, so that it says nothing of drafts.
        seconds = None if before is None or getattr(scheduled, "skip_drafts", False) else now - before
        answers = (tokens for name, tokens in zip(names, sampled, strict=False) if name not in prompts)
        emitted = Counter(map(len, answers if prompts else sampled))
        emitted.pop(0, None)
        accepted = {tokens - 1: count for tokens, count in emitted.items()}
        change = self.choice.note(requests, asked, accepted, seconds, sum(prompts.values()))
        self._follow_if_moved()
        if change is not None:
            self._tell(change, now)
        if now - self._since > KEEP:
            self._since = now
            self.keep()

    def tell_depth(self, scheduled: SchedulerOutput) -> None:
        """Tell the workers how deep the trees are that a step drafts, which has just been ``scheduled``."""
        asked = self._asked_of(scheduled)
        chosen = self.choice.size(len(scheduled.num_scheduled_tokens))
        if chosen.nodes == asked.nodes and chosen.levels < asked.levels:
            tell_depth(scheduled, chosen.levels)

    def _asked_of(self, scheduled: SchedulerOutput) -> DraftSize:
        """What a step drafts for requests that brought no tree."""
        others, depth = others_in(scheduled), depth_in(scheduled)
        asked = DraftSize.of(scheduled.num_spec_tokens_to_schedule if others is None else others, self._full)
        return asked if depth is None else asked._replace(levels=depth)

    def keep(self) -> None:
        """Keep what was measured for the next start."""
        self._kept.write(self.choice.costs())

    def follow(self) -> None:
        """Have the scheduler draft what is chosen."""
        for requests in range(1, len(self._lookup)):
            self._lookup[requests] = self.choice.size(requests).nodes

    def _follow_if_moved(self) -> None:
        if self.choice.has_moved():
            self.follow()

    def _tell(self, change: Change, now: float) -> None:
        if now - self._said.get(change.first, -QUIET) < QUIET:
            return
        self._said[change.first] = now
        logger.info(
            "Drafted tokens for %d to %d running requests: %s; expected to be %.2f times as fast as without drafts.",
            change.first,
            change.last,
            self._in_words(change.size),
            change.speed,
        )

    def _in_words(self, size: DraftSize) -> str:
        if self._full is None or size.nodes <= size.levels:
            return str(size.nodes or "none")
        return f"{size.nodes} in {size.levels} levels"


def _prompts(scheduled: SchedulerOutput) -> dict[str, int]:
    """Requests that read a piece of their prompt in a step, and how many tokens."""
    rows, drafts = scheduled.num_scheduled_tokens, scheduled.scheduled_spec_decode_tokens
    new = {request.req_id for request in scheduled.scheduled_new_reqs}
    if not new and scheduled.total_num_scheduled_tokens == len(rows) + sum(map(len, drafts.values())):
        return {}
    return {name: count for name, count in rows.items() if name in new or count != 1 + len(drafts.get(name, ()))}
