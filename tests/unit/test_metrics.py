"""What is published and logged about draft trees, through vLLM's own stat loggers and Prometheus registry."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.metrics.loggers import (
    AggregatedLoggingStatLogger,
    LoggingStatLogger,
    PrometheusStatLogger,
    StatLoggerManager,
)
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.reader import get_metrics_snapshot
from vllm.v1.metrics.stats import IterationStats, SchedulerStats
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from vllm_specext.engine.metrics import by_accepted, by_size, exactly
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, TARGET

NODES, DEPTH = 24, 4
VERIFICATIONS = [(24, 4), (24, 0), (24, 1), (8, 1), (3, 3)]
"""Nodes and accepted tokens of five verifications in one step."""
PREFIX = "vllm:specext_"


def step(verifications: list[tuple[int, int]]) -> SchedulerStats:
    stats = SpecDecodingStats.new(NODES)
    for nodes, accepted in verifications:
        stats.observe_draft(nodes, accepted)
    return SchedulerStats(spec_decoding_stats=stats)


def configure(speculative: dict[str, Any] | None) -> Any:
    return EngineArgs(model=str(TARGET), max_model_len=256, speculative_config=speculative).create_engine_config()


@pytest.fixture(scope="module")
def tree() -> Any:
    sizes = {"num_speculative_tokens": NODES, "tree_top_k": 4, "tree_depth": DEPTH}
    return configure(GRIFFIN_CHAIN | sizes)


@pytest.fixture(scope="module")
def plain() -> Any:
    return configure(None)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    yield
    unregister_vllm_metrics()


def ours() -> set[str]:
    return {name for name in REGISTRY._names_to_collectors if "specext" in name}


def value(name: str, engine: int = 0, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"{PREFIX}{name}", {"model_name": str(TARGET), "engine": str(engine), **labels})


def log_lines(manager: StatLoggerManager) -> list[str]:
    lines: list[str] = []
    for each in per_engine(manager):
        each.spec_decoding_logging.log(lambda text, *arguments: lines.append(text % arguments))
    return lines


def per_engine(manager: StatLoggerManager) -> list[LoggingStatLogger]:
    first = manager.stat_loggers[0]
    return [first] if isinstance(first, LoggingStatLogger) else list(first.per_engine_stat_loggers.values())


def test_counts_by_position_become_counts_by_verification() -> None:
    stats = step(VERIFICATIONS).spec_decoding_stats
    assert by_size(stats) == Counter({24: 3, 8: 1, 3: 1})
    assert by_accepted(stats) == Counter({0: 1, 1: 2, 3: 1, 4: 1})
    assert exactly(2, [0, 0]) == Counter({0: 2})
    assert exactly(0, [0, 0]) == Counter()


def test_everything_is_published_with_vllms_labels_and_adds_up(tree: Any) -> None:
    manager = StatLoggerManager(tree)
    for _ in range(2):
        manager.record(step(VERIFICATIONS), None)
    assert value("num_draft_nodes_total") == 2 * 83
    assert [value("num_accepted_tokens_per_depth_total", depth=str(depth)) for depth in (1, 2, 3, 4)] == [8, 4, 4, 2]
    assert [value("num_verifications_total", nodes=str(nodes)) for nodes in (24, 8, 3)] == [6, 2, 2]
    assert value("acceptance_length_count") == 10
    assert value("acceptance_length_sum") == 10 + 18
    assert [value("acceptance_length_bucket", le=f"{le}.0") for le in (1, 2, 3, 4, 5)] == [2, 6, 6, 8, 10]


def test_what_is_drafted_at_a_load_is_published_for_steps_that_only_decode(tree: Any) -> None:
    manager, decoding, prefilling = StatLoggerManager(tree), IterationStats(), IterationStats()
    decoding.num_generation_tokens = prefilling.num_generation_tokens = 5
    prefilling.time_to_first_tokens_iter = [0.1]
    for running, own, iteration in (
        (5, step([(8, 1)] * 5), decoding),
        (5, step([]), prefilling),
        (1, step([]), decoding),
    ):
        own.num_running_reqs = running
        manager.record(own, iteration)
    assert value("drafted_tokens", running="4-7") == 8
    assert value("drafted_tokens", running="1") == 0
    assert value("drafted_tokens", running="2-3") is None


def test_there_is_one_series_per_depth_and_one_per_size_that_occurred(tree: Any) -> None:
    manager = StatLoggerManager(tree)
    assert [value("num_accepted_tokens_per_depth_total", depth=str(depth)) for depth in (1, DEPTH)] == [0, 0]
    assert value("num_accepted_tokens_per_depth_total", depth=str(DEPTH + 1)) is None
    assert value("num_verifications_total", nodes="24") is None
    manager.record(step(VERIFICATIONS), None)
    labels = [sample.labels for metric in REGISTRY.collect() for sample in metric.samples]
    assert {entry["depth"] for entry in labels if "depth" in entry} == {"1", "2", "3", "4"}
    assert {entry["nodes"] for entry in labels if "nodes" in entry} == {"24", "8", "3"}


def test_a_chain_is_as_deep_as_it_is_long() -> None:
    StatLoggerManager(configure(GRIFFIN_CHAIN | {"num_speculative_tokens": 7, "tree_depth": 3}))
    assert value("num_accepted_tokens_per_depth_total", depth="7") == 0
    assert value("num_accepted_tokens_per_depth_total", depth="8") is None


def test_a_step_without_drafts_counts_nowhere(tree: Any) -> None:
    manager = StatLoggerManager(tree)
    manager.record(SchedulerStats(), None)
    manager.record(None, None)
    assert value("num_draft_nodes_total") == 0
    assert log_lines(manager) == []


def test_the_log_has_one_rate_per_depth_and_the_trees_sizes(tree: Any) -> None:
    manager = StatLoggerManager(tree)
    manager.record(step(VERIFICATIONS), None)
    vllms, sizes = log_lines(manager)
    assert "Mean acceptance length: 2.80" in vllms
    assert "Per-position acceptance rate: 0.800, 0.400, 0.400, 0.200, Avg" in vllms
    assert sizes.startswith(
        "Draft tree metrics: Nodes per verification: 16.6, Share of verifications by nodes: 24: 60.0%"
    )
    assert sizes.count("%") == 3
    assert log_lines(manager) == []  # an interval is told once


@pytest.mark.parametrize("aggregate", [False, True])
def test_several_engines_are_told_apart_in_prometheus(tree: Any, aggregate: bool) -> None:
    manager = StatLoggerManager(tree, engine_idxs=[0, 1], aggregate_engine_logging=aggregate)
    manager.record(step([(24, 2)]), None, engine_idx=0)
    manager.record(step([(8, 1), (8, 1)]), None, engine_idx=1)
    assert [value("num_draft_nodes_total", engine) for engine in (0, 1)] == [24, 16]
    sizes = [line.partition("by nodes: ")[2] for line in log_lines(manager) if line.startswith("Draft tree")]
    if aggregate:
        assert isinstance(manager.stat_loggers[0], AggregatedLoggingStatLogger)
        assert sizes == ["8: 66.7%, 24: 33.3%"]
    else:
        assert sizes == ["24: 100.0%", "8: 100.0%"]


def test_an_engine_after_another_in_one_process_starts_at_zero(tree: Any) -> None:
    for _ in range(2):
        manager = StatLoggerManager(tree)
        manager.record(step([(24, 2)]), None)
        assert value("num_draft_nodes_total") == 24


def test_an_offline_engine_finds_them_among_its_metrics(tree: Any) -> None:
    StatLoggerManager(tree).record(step(VERIFICATIONS), None)
    found = {metric.name: metric for metric in get_metrics_snapshot() if metric.name.startswith(PREFIX)}
    assert found[f"{PREFIX}num_draft_nodes"].value == 83
    assert found[f"{PREFIX}acceptance_length"].sum == 14


def test_no_metric_and_no_line_without_our_methods(tree: Any, plain: Any) -> None:
    StatLoggerManager(tree)
    assert ours()
    manager = StatLoggerManager(plain)
    manager.record(step(VERIFICATIONS), None)
    assert not ours()
    assert [type(each).__name__ for each in manager.stat_loggers] == [
        "PerEngineStatLoggerAdapter",
        PrometheusStatLogger.__name__,
    ]
    assert not any(line.startswith("Draft tree") for line in log_lines(manager))


def test_vllms_choice_not_to_log_is_kept(tree: Any) -> None:
    manager = StatLoggerManager(tree, client_count=2)
    assert not any(isinstance(each, LoggingStatLogger) for each in manager.stat_loggers)
    assert ours()
