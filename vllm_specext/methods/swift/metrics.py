"""Metrics of SWIFT's search, from the worker to Prometheus and the log.

In Prometheus, with vLLM's labels (``model_name``, ``engine``):

* ``vllm:specext_swift_matchness``: matchness of the active set, absent until it is measured;
* ``vllm:specext_swift_acceptance``: share of right tokens among the chain's tokens that verification reached; a moving
  average, absent without drafts;
* ``vllm:specext_swift_set_version``: how often the active set was replaced;
* ``vllm:specext_swift_search_steps_total``: sets evaluated;
* ``vllm:specext_swift_restarts_total``: searches that began anew because acceptance had fallen.

The only statistics that vLLM's workers send are those of connectors. So the statistics of the search travel in the
place of an encoder-cache connector's, which SWIFT refuses: in the worker's output, then in the scheduler's statistics,
then to the loggers, where these classes stand for the connector's.
"""

from collections.abc import Callable
from typing import Any

from vllm_specext.methods.swift.search.keeping import settled
from vllm_specext.methods.swift.search.search import Search

Stats = dict[str, Any]
"""Statistics by name. Counts are those added since the last time, because not all go to the same front end."""


class SearchStats:
    """The statistics of a search, on the worker's side."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._sent: tuple[Any, ...] = (None, None, 0, 0, 0)

    def changes(self) -> Stats | None:
        """The statistics if any has changed since the last call, else ``None``."""
        search = self._search
        rate = search.acceptance.rate
        # To two digits, so that nothing changes while a set does as well as before.
        acceptance = None if rate is None else round(rate, 2)
        now = (search.best, acceptance, search.version, settled(search), search.restarts)
        if now == self._sent:
            return None
        *_, steps, restarts = self._sent
        self._sent = now
        return {
            "matchness": search.best,
            "acceptance": acceptance,
            "version": search.version,
            "steps": settled(search) - steps,
            "restarts": search.restarts - restarts,
        }


class SwiftMetrics:
    """Prometheus metrics of the search, in the place of an ``ECConnectorProm``."""

    def __init__(self, prometheus: Any) -> None:
        self.engines = prometheus.per_engine_labelvalues
        labels = ["model_name", "engine"]

        def gauge(name: str, documentation: str) -> Any:
            return prometheus._gauge_cls(
                name=f"vllm:specext_swift_{name}",
                documentation=documentation,
                labelnames=labels,
                multiprocess_mode="mostrecent",
            )

        def counter(name: str, documentation: str) -> Any:
            return prometheus._counter_cls(
                name=f"vllm:specext_swift_{name}", documentation=documentation, labelnames=labels
            )

        self.gauges = {
            "matchness": gauge("matchness", "Share of a window's tokens that the active set of layers drafts right."),
            "acceptance": gauge(
                "acceptance", "Share of right tokens in the chains, as far as they were verified; a moving average."
            ),
            "version": gauge("set_version", "How often the active set of layers was replaced."),
        }
        self.counters = {
            "steps": counter("search_steps", "Sets of layers evaluated by the search."),
            "restarts": counter("restarts", "Searches begun anew because acceptance had fallen."),
        }
        for engine in self.engines.values():  # these start at 0, the others as unknown
            for metric in (self.gauges["version"], *self.counters.values()):
                metric.labels(*engine)

    def observe(self, stats: Stats, engine_idx: int = 0) -> None:
        engine = self.engines[engine_idx]
        for key, gauge in self.gauges.items():
            if stats[key] is not None:
                gauge.labels(*engine).set(stats[key])
        for key, counter in self.counters.items():
            counter.labels(*engine).inc(stats[key])


class SwiftLogging:
    """Log lines of the search, in the place of an ``ECConnectorLogging``. Where several engines share a line, the one
    that sent last counts."""

    def __init__(self) -> None:
        self._last: Stats = {}
        self._steps = self._restarts = 0
        self._has_changed = False

    def observe(self, stats: Stats) -> None:
        self._last |= {key: value for key, value in stats.items() if value is not None}
        self._steps += stats["steps"]
        self._restarts += stats["restarts"]
        self._has_changed = True

    def log(self, log_fn: Callable[..., None]) -> None:
        if not self._has_changed:
            return
        self._has_changed = False
        known = (self._last.get(key) for key in ("matchness", "acceptance"))
        matchness, acceptance = ("unknown" if value is None else f"{value:.2f}" for value in known)
        log_fn(
            "SWIFT metrics: Matchness: %s, Right in chains: %s, Set: %d, Sets evaluated: %d, Restarts: %d",
            matchness,
            acceptance,
            self._last["version"],
            self._steps,
            self._restarts,
        )


METRICS = (SwiftMetrics, SwiftLogging)
"""The classes for Prometheus and for the log."""
