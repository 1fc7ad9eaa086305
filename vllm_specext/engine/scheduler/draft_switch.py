"""Times the scheduler's steps, and switches drafting off for the numbers of running requests at which it loses.

The scheduler decides for every worker how many tokens are drafted, so this is the one place that can decide for all of
them at once. Drafting less or more never changes the output.
"""

import logging
import time
from collections.abc import Sequence

from vllm.v1.core.sched.output import SchedulerOutput

from vllm_specext.tree.payoff import Payoff

logger = logging.getLogger(f"vllm.{__name__}")  # a child of vLLM's logger, whose handlers and level it shares


class DraftSwitch:
    def __init__(self, lookup: list[int]) -> None:
        """``lookup``: tokens to draft by number of running requests, changed in place."""
        self._lookup = lookup
        self._full = tuple(lookup)
        self._payoff = Payoff()
        self._before: tuple[float, int] | None = None
        """When the step before ended and how many requests it had, if it only decoded."""

    def note(self, scheduled: SchedulerOutput, sampled: Sequence[Sequence[int]]) -> None:
        """Take note that a step that was ``scheduled`` has ended; ``sampled`` are the tokens of each request."""
        now, requests = time.perf_counter(), len(scheduled.num_scheduled_tokens)
        drafted = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        only_decodes = scheduled.total_num_scheduled_tokens == requests + drafted
        before, self._before = self._before, (now, requests) if only_decodes else None
        # After a prefill or without requests for a while, the time since the step before says nothing.
        if not requests or not only_decodes or before is None or before[1] != requests or not self._full[requests]:
            return
        verdict = self._payoff.note(requests, sum(map(len, sampled)), now - before[0])
        if (drafts := self._payoff.drafts(requests)) != bool(self._lookup[requests]):
            first = 1 << (requests.bit_length() - 1)
            for number in range(first, min(2 * first, len(self._lookup))):
                self._lookup[number] = self._full[number] if drafts else 0
        if verdict is not None:
            logger.info(
                "Drafting is %s for %d to %d running requests: tokens come %.2f times as fast with it as without.",
                "on" if verdict.drafts else "off",
                verdict.first,
                verdict.last,
                verdict.speed,
            )
