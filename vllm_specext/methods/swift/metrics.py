"""Metrics of the search, from the worker to Prometheus and the log.

In Prometheus, with vLLM's labels (``model_name``, ``engine``):

* ``vllm:specext_swift_matchness``: the active set's, absent until it is measured;
* ``vllm:specext_swift_acceptance``: share of the chain's tokens that were right, of those that verification reached, a
  moving average, absent without drafts;
* ``vllm:specext_swift_set_version``: how often the active set was replaced;
* ``vllm:specext_swift_search_steps_total``: sets evaluated;
* ``vllm:specext_swift_restarts_total``: searches begun anew because acceptance had fallen.

vLLM's workers have no statistics of their own but those of connectors. News of the search travels in the place of the
encoder-cache connector's, which SWIFT refuses: from the worker's output over the scheduler's statistics to the loggers,
where these classes stand for the connector's.
"""

from collections.abc import Callable
from typing import Any

from vllm_specext.methods.swift.keeping import settled
from vllm_specext.methods.swift.search import Search

Told = dict[str, Any]
"""Counts are what was added since the last time, because not all news goes to the same front end."""


class News:
    """The worker's side."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._told: tuple[Any, ...] = (None, None, 0, 0, 0)

    def take(self) -> Told | None:
        """What has changed since the last call, ``None`` for nothing."""
        search = self._search
        rate = search.acceptance.rate
        # To two digits, so that there is no news of a set that does as well as before.
        acceptance = None if rate is None else round(rate, 2)
        now = (search.best, acceptance, search.version, settled(search), search.restarts)
        if now == self._told:
            return None
        *_, steps, restarts = self._told
        self._told = now
        return {
            "matchness": search.best,
            "acceptance": acceptance,
            "version": search.version,
            "steps": settled(search) - steps,
            "restarts": search.restarts - restarts,
        }


class SwiftMetrics:
    """Stands for an ``ECConnectorProm``."""

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
        for engine in self.engines.values():  # those that are 0 and not unknown
            for metric in (self.gauges["version"], *self.counters.values()):
                metric.labels(*engine)

    def observe(self, told: Told, engine_idx: int = 0) -> None:
        engine = self.engines[engine_idx]
        for key, gauge in self.gauges.items():
            if told[key] is not None:
                gauge.labels(*engine).set(told[key])
        for key, counter in self.counters.items():
            counter.labels(*engine).inc(told[key])


class SwiftLogging:
    """Stands for an ``ECConnectorLogging``; of several engines in one log line, the last to tell something counts."""

    def __init__(self) -> None:
        self._last: Told = {}
        self._steps = self._restarts = 0
        self._has_news = False

    def observe(self, told: Told) -> None:
        self._last |= {key: value for key, value in told.items() if value is not None}
        self._steps += told["steps"]
        self._restarts += told["restarts"]
        self._has_news = True

    def log(self, log_fn: Callable[..., None]) -> None:
        if not self._has_news:
            return
        self._has_news = False
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
"""For Prometheus and for the log."""
