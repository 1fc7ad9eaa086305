"""What the search finds goes to the log and to the file ``swift_save``.

A new active set is logged and written, at most once in `INTERVAL` settled steps, and so is the set with which the
search stops. A search that starts anew is only logged. The file is written once more when the engine ends, unless the
engine is killed. A file that cannot be written is a warning, and the engine goes on.
"""

import logging
from pathlib import Path

from vllm_specext.methods.swift.search.search import TOLERANCE, Search, SearchOptions
from vllm_specext.methods.swift.search.stored import FoundSet, Target, write_found

logger = logging.getLogger(f"vllm.{__name__}")  # a child of vLLM's logger, whose handlers and level it shares

INTERVAL = 10
"""Settled steps from one logged set to the next: a search begins with many sets that are soon replaced."""


def settled(search: Search) -> int:
    """The number of steps settled so far, with those before restarts and those that scored the first set."""
    return search.history[-1].number + 1 if search.history else 0


class SetRecorder:
    """Logs and writes the sets that ``search`` finds."""

    def __init__(self, search: Search, options: SearchOptions, target: Target, path: Path | None) -> None:
        """``options`` are those of ``search``. Without a ``path`` nothing is written."""
        self._search = search
        self._options = options
        self._target = target
        self._path = path
        self._version, self._restarts, self._is_stopped = search.version, search.restarts, search.stopped
        self._logged_at = -INTERVAL
        self._saved = settled(search)
        self._has_warned = False

    def record(self) -> None:
        """Log and write what is new. To be called after every step of the engine."""
        search = self._search
        if search.restarts != self._restarts:
            self._restarts, self._is_stopped = search.restarts, False
            logger.info("SWIFT's search starts anew, because a smaller share of the drafts is accepted than before.")
        if search.stopped and not self._is_stopped:
            self._is_stopped = True
            self._log_and_save(f" The search stops: {self._why_stopped()}.")
        elif search.version != self._version and settled(search) >= self._logged_at + INTERVAL:
            self._log_and_save("")

    def save(self) -> None:
        """Write the active set, unless no set was tried since the last time."""
        search = self._search
        if self._path is None or self._saved == settled(search):
            return
        self._saved = settled(search)
        ratio, history = self._options.swift_skip_ratio, tuple(search.history)
        try:
            write_found(self._path, FoundSet(self._target, search.active, ratio, search.best, search.steps, history))
        except OSError as error:
            if not self._has_warned:
                logger.warning("SWIFT's set cannot be written to %s (%s).", self._path, error)
            self._has_warned = True

    def _log_and_save(self, addition: str) -> None:
        search = self._search
        self._version, self._logged_at = search.version, settled(search)
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
