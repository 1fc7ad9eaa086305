"""Metrics of draft trees, from the statistics that vLLM's scheduler sends with every step.

In Prometheus, with vLLM's labels (``model_name``, ``engine``):

* ``vllm:specext_num_accepted_tokens_per_depth_total{depth}``: drafted tokens accepted at depth 1 to the tree's depth;
* ``vllm:specext_num_draft_nodes_total``: nodes verified, the root not counted;
* ``vllm:specext_num_verifications_total{nodes}``: verifications of a tree of so many nodes;
* ``vllm:specext_acceptance_length``: histogram of the tokens a verification emits, the target's own token included;
* ``vllm:specext_drafted_tokens{running}``: drafted tokens that the last step without prompts verified for a request, by
  range of running requests (1, 2-3, 4-7, ...), as the scheduler chose them; 0 where it drafted nothing.

vLLM's log line on speculation gets one acceptance rate per depth instead of one per node, and a line on tree sizes
follows it. A verification without drafted tokens is not counted, as in vLLM's own metrics.

The names begin with ``vllm:`` because vLLM removes metrics with such names from the registry when another engine starts
in the same process, and because ``LLM.get_metrics`` returns nothing else.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from vllm.v1.metrics.loggers import AggregateStatLoggerBase, PrometheusStatLogger
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.spec_decode.metrics import SpecDecodingLogging, SpecDecodingStats

SIZES_IN_LOG = 5
"""How many sizes of trees the log line has. The schedule by load gives a few; trees that vLLM's scheduler cuts to fit a
step add rare others."""


def exactly(total: int, more_than: Sequence[int]) -> Counter[int]:
    """How many of ``total`` verifications reached exactly n, by n, where ``more_than[n]`` reached more than n."""
    counts = (reached - further for reached, further in pairwise((total, *more_than, 0)))
    return Counter({n: count for n, count in enumerate(counts) if count})


def by_size(stats: SpecDecodingStats) -> Counter[int]:
    """The number of verifications, by the number of nodes."""
    return exactly(stats.num_drafts, stats.num_draft_tokens_per_pos)


def by_accepted(stats: SpecDecodingStats) -> Counter[int]:
    """The number of verifications, by the number of accepted tokens.

    vLLM's scheduler only counts, so its position i stands for depth i + 1, whichever nodes were accepted.
    """
    return exactly(stats.num_drafts, stats.num_accepted_tokens_per_pos)


def only_decoded(iteration_stats: Any) -> bool:
    """Whether vLLM's statistics of a step tell of generated tokens, and of no request's first one."""
    found = iteration_stats
    return found is not None and found.num_generation_tokens > 0 and not found.time_to_first_tokens_iter


def load_of(requests: int) -> str:
    """The range of running requests that the scheduler chooses for: 1, 2-3, 4-7 and so on."""
    size = requests.bit_length()
    return "1" if size == 1 else f"{1 << (size - 1)}-{(1 << size) - 1}"


class DraftTreeStatLogger(AggregateStatLoggerBase):
    """Publishes beside vLLM's Prometheus logger, with its labels and through its classes (Ray has others)."""

    def __init__(self, prometheus: PrometheusStatLogger, depth: int) -> None:
        self.engines = prometheus.per_engine_labelvalues
        self.depths = range(1, depth + 1)
        labels = ["model_name", "engine"]
        counter, histogram = prometheus._counter_cls, prometheus._histogram_cls
        self.accepted = counter(
            name="vllm:specext_num_accepted_tokens_per_depth",
            documentation="Drafted tokens accepted, by their depth in the draft tree.",
            labelnames=[*labels, "depth"],
        )
        self.nodes = counter(
            name="vllm:specext_num_draft_nodes",
            documentation="Nodes of draft trees that were verified, the root not counted.",
            labelnames=labels,
        )
        self.verifications = counter(
            name="vllm:specext_num_verifications",
            documentation="Verifications, by the number of nodes of the draft tree.",
            labelnames=[*labels, "nodes"],
        )
        self.acceptance_length = histogram(
            name="vllm:specext_acceptance_length",
            documentation="Tokens emitted by a verification: those accepted and one more.",
            labelnames=labels,
            buckets=[float(accepted + 1) for accepted in range(depth + 1)],
        )
        self.drafted = prometheus._gauge_cls(
            name="vllm:specext_drafted_tokens",
            documentation="Drafted tokens of a request in the last step that only decoded, by running requests.",
            labelnames=[*labels, "running"],
            multiprocess_mode="mostrecent",
        )
        for engine in self.engines.values():  # the series whose labels are known begin at 0, as vLLM's do
            self.nodes.labels(*engine)
            self.acceptance_length.labels(*engine)
            for level in self.depths:
                self.accepted.labels(*engine, str(level))

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        stats = scheduler_stats.spec_decoding_stats if scheduler_stats is not None else None
        engine = self.engines[engine_idx]
        if scheduler_stats is not None and scheduler_stats.num_running_reqs and only_decoded(iteration_stats):
            drafted = stats.num_draft_tokens / stats.num_drafts if stats is not None and stats.num_drafts else 0
            self.drafted.labels(*engine, load_of(scheduler_stats.num_running_reqs)).set(drafted)
        if stats is None:
            return
        self.nodes.labels(*engine).inc(stats.num_draft_tokens)
        for depth, accepted in zip(self.depths, stats.num_accepted_tokens_per_pos, strict=False):
            self.accepted.labels(*engine, str(depth)).inc(accepted)
        for nodes, count in by_size(stats).items():
            self.verifications.labels(*engine, str(nodes)).inc(count)
        acceptance_length = self.acceptance_length.labels(*engine)
        for accepted, count in by_accepted(stats).items():
            for _ in range(count):
                acceptance_length.observe(accepted + 1)

    def log_engine_initialized(self) -> None:
        pass


class DraftTreeLogging(SpecDecodingLogging):
    """vLLM's log line with as many acceptance rates as the tree has levels, and one on the trees' sizes."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        super().__init__()

    def reset(self) -> None:
        super().reset()
        self.sizes: Counter[int] = Counter()

    def observe(self, stats: SpecDecodingStats) -> None:
        super().observe(replace(stats, num_accepted_tokens_per_pos=stats.num_accepted_tokens_per_pos[: self.depth]))
        self.sizes += by_size(stats)

    def log(self, log_fn: Callable[..., None]) -> None:
        sizes = self.sizes
        super().log(log_fn)
        if not sizes:
            return
        total = sizes.total()
        shares = (f"{nodes}: {count / total:.1%}" for nodes, count in sizes.most_common(SIZES_IN_LOG))
        log_fn(
            "Draft tree metrics: Nodes per verification: %.1f, Share of verifications by nodes: %s",
            sum(nodes * count for nodes, count in sizes.items()) / total,
            ", ".join(shares),
        )
