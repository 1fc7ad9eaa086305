"""What the search finds is told in the log and kept in the file ``swift_save``.

Told and kept are a new active set, at most once in so many settled steps, and the set with which the search stops; that
it starts anew is told only. The file is written once more when the engine ends, unless it is killed. A file that cannot
be written is a warning, and the engine goes on.
"""

import logging
from pathlib import Path

from vllm_specext.methods.swift.search import TOLERANCE, Search, SearchOptions
from vllm_specext.methods.swift.stored import FoundSet, Target, write_found

logger = logging.getLogger(f"vllm.{__name__}")  # a child of vLLM's logger, whose handlers and level it shares

INTERVAL = 10
"""Settled steps from one new set that is told to the next: a search begins with many that are soon replaced."""


def settled(search: Search) -> int:
    """Steps settled so far, those before restarts and those that scored the first set included."""
    return search.history[-1].number + 1 if search.history else 0


class Keeper:
    def __init__(self, search: Search, options: SearchOptions, target: Target, path: Path | None) -> None:
        """``options`` are those of ``search``; without a ``path`` it is only told."""
        self._search = search
        self._options = options
        self._target = target
        self._path = path
        self._version, self._restarts, self._is_stopped = search.version, search.restarts, search.stopped
        self._told_at = -INTERVAL
        self._kept = settled(search)
        self._has_warned = False

    def look(self) -> None:
        """Tell and keep what is new; to be called after every step of the engine."""
        search = self._search
        if search.restarts != self._restarts:
            self._restarts, self._is_stopped = search.restarts, False
            logger.info("SWIFT's search starts anew, because a smaller share of the drafts is accepted than before.")
        if search.stopped and not self._is_stopped:
            self._is_stopped = True
            self._tell(f" The search stops: {self._why_stopped()}.")
        elif search.version != self._version and settled(search) >= self._told_at + INTERVAL:
            self._tell("")

    def save(self) -> None:
        """Write the active set, unless nothing was tried since it was written last."""
        search = self._search
        if self._path is None or self._kept == settled(search):
            return
        self._kept = settled(search)
        ratio, history = self._options.swift_skip_ratio, tuple(search.history)
        try:
            write_found(self._path, FoundSet(self._target, search.active, ratio, search.best, search.steps, history))
        except OSError as error:
            if not self._has_warned:
                logger.warning("SWIFT's set cannot be written to %s (%s).", self._path, error)
            self._has_warned = True

    def _tell(self, addition: str) -> None:
        search = self._search
        self._version, self._told_at = search.version, settled(search)
        matchness = "not measured yet" if search.best is None else f"{search.best:.2f}"
        tried = f"{search.steps} candidate{'' if search.steps == 1 else 's'}"
        logger.info(
            "SWIFT skips %s: set %d, matchness %s, after %s.%s",
            search.active,
            search.version,
            matchness,
            tried,
            addition,
        )
        self.save()

    def _why_stopped(self) -> str:
        search, options = self._search, self._options
        if search.best is not None and search.best > options.swift_max_score:
            return f"matchness is above swift_max_score, {options.swift_max_score}"
        if search.steps >= options.swift_max_steps:
            return "swift_max_steps is reached"
        return f"more than {TOLERANCE} candidates in a row were no better"
