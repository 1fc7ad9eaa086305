"""What the search knows in the worker, through vLLM's scheduler and serialisation to Prometheus and the log."""

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.unit.swift_searches import chain, search, step
from tests.unit.test_metrics import configure, log_lines, value
from tests.unit.test_scheduling import request, scheduler
from tests.unit.test_swift_keeping import be_sure_of
from vllm_specext.engine.hooks.runner_patches import _sample_tokens
from vllm_specext.measure.bundled import GRIFFIN_CHAIN
from vllm_specext.methods.swift.metrics import SearchStats
from vllm_specext.methods.swift.search.acceptance import AVERAGED_VERIFICATIONS
from vllm_specext.methods.swift.search.keeping import settled

SWIFT = {"method": "swift", "num_speculative_tokens": 8}
NOTHING_NEW = {"matchness": None, "acceptance": None, "version": 0, "steps": 0, "restarts": 0}


@pytest.fixture(scope="module")
def config() -> Any:
    return configure(SWIFT)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    yield
    unregister_vllm_metrics()


def stats_with(**stats: Any) -> SchedulerStats:
    return SchedulerStats(ec_connector_stats=NOTHING_NEW | stats)


def swift(name: str, engine: int = 0) -> float | None:
    return value(f"swift_{name}", engine)


def test_changes_are_given_once_and_counts_as_what_was_added() -> None:
    searching = search()
    stats = SearchStats(searching)
    assert stats.changes() is None
    step(searching, 0.3)
    step(searching, 0.5, 0.3)
    assert stats.changes() == NOTHING_NEW | {"matchness": 0.5, "version": 1, "steps": 2}
    assert stats.changes() is None
    step(searching, 0.4)
    assert stats.changes() == NOTHING_NEW | {"matchness": 0.5, "version": 1, "steps": 1}


def test_an_acceptance_that_stays_the_same_is_no_change() -> None:
    searching = search(swift_max_steps=0)
    stats = SearchStats(searching)
    rates = []
    for number in range(3 * AVERAGED_VERIFICATIONS):
        searching.note(chain(2 + number % 2, 3))
        if (new := stats.changes()) is not None:
            rates.append(new["acceptance"])
    assert rates[0] == 0.67
    assert rates[-1] == pytest.approx(2.5 / 3, abs=0.01)
    assert len(rates) < AVERAGED_VERIFICATIONS


def test_a_restart_is_a_change() -> None:
    searching = search()
    stats = SearchStats(searching)
    be_sure_of(searching, 0.97)
    for accepted in [9] * AVERAGED_VERIFICATIONS + [1] * AVERAGED_VERIFICATIONS:
        searching.note(chain(accepted, 10))
    new = stats.changes()
    assert new is not None
    assert (new["restarts"], new["steps"], new["matchness"]) == (1, settled(searching), None)


def runner(speculator: Any) -> SimpleNamespace:
    """vLLM's, with nothing to compare between ranks."""
    return SimpleNamespace(speculator=speculator, vllm_config=SimpleNamespace(speculative_config=None))


def test_statistics_pass_from_the_worker_to_the_front_end(config: Any) -> None:
    """Through the wrapped runner, as between processes pickled, vLLM's scheduler and its wire format."""
    searching = search()
    step(searching, 0.3)
    answer = ModelRunnerOutput(req_ids=["a"], req_id_to_index={"a": 0}, sampled_token_ids=[[5]])
    sample = _sample_tokens(lambda self, grammar: SimpleNamespace(model_runner_output=answer))
    pending = sample(runner(SimpleNamespace(stats=SearchStats(searching))), None)
    engine = scheduler(config)
    engine.add_request(request("a"))
    scheduled = engine.schedule()
    outputs = engine.update_from_output(scheduled, pickle.loads(pickle.dumps(pending.model_runner_output)))
    sent = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(outputs[0]))
    manager = StatLoggerManager(config)
    manager.record(sent.scheduler_stats, None)
    assert (swift("matchness"), swift("search_steps_total")) == (0.3, 1)


def test_a_runner_without_changes_hands_on_what_it_made() -> None:
    made = SimpleNamespace(model_runner_output=SimpleNamespace(ec_connector_output=None))
    silent = SimpleNamespace(changes=lambda: None)
    for speculator, output in ((None, made), (SimpleNamespace(), made), (SimpleNamespace(stats=silent), made)):
        sample = _sample_tokens(lambda self, grammar, output=output: output)
        assert sample(runner(speculator), None) is made
        assert made.model_runner_output.ec_connector_output is None
    talkative = runner(SimpleNamespace(stats=SimpleNamespace(changes=lambda: NOTHING_NEW)))
    assert _sample_tokens(lambda self, grammar: None)(talkative, None) is None  # the step failed


def test_everything_is_published_with_vllms_labels(config: Any) -> None:
    manager = StatLoggerManager(config)
    assert [swift(name) for name in ("set_version", "search_steps_total", "restarts_total")] == [0, 0, 0]
    assert [swift(name) for name in ("matchness", "acceptance")] == [None, None]
    manager.record(stats_with(matchness=0.5, steps=2, version=1), None)
    manager.record(stats_with(acceptance=0.9, steps=3, version=2), None)
    manager.record(stats_with(matchness=0.75, steps=1, restarts=1, version=2), None)
    manager.record(SchedulerStats(), None)
    assert [swift(name) for name in ("matchness", "acceptance", "set_version")] == [0.75, 0.9, 2]
    assert [swift(name) for name in ("search_steps_total", "restarts_total")] == [6, 1]


def test_several_engines_are_told_apart(config: Any) -> None:
    manager = StatLoggerManager(config, engine_idxs=[0, 1])
    manager.record(stats_with(matchness=0.5, steps=2), None, engine_idx=0)
    manager.record(stats_with(matchness=0.6, steps=3), None, engine_idx=1)
    assert [swift("matchness", engine) for engine in (0, 1)] == [0.5, 0.6]
    assert [swift("search_steps_total", engine) for engine in (0, 1)] == [2, 3]


def swift_lines(manager: StatLoggerManager) -> list[str]:
    lines: list[str] = []
    first: Any = manager.stat_loggers[0]
    for each in first.per_engine_stat_loggers.values():
        each.ec_connector_logging.log(lambda text, *arguments: lines.append(text % arguments))
    return lines


def test_the_log_has_a_line_where_something_changed_since_the_last(config: Any) -> None:
    manager = StatLoggerManager(config)
    assert swift_lines(manager) == []
    manager.record(stats_with(matchness=0.5, steps=2, version=1), None)
    assert swift_lines(manager) == [
        "SWIFT metrics: Matchness: 0.50, Right in chains: unknown, Set: 1, Sets evaluated: 2, Restarts: 0"
    ]
    assert swift_lines(manager) == []
    manager.record(stats_with(acceptance=0.875, steps=3, version=2, restarts=1), None)
    assert swift_lines(manager) == [
        "SWIFT metrics: Matchness: 0.50, Right in chains: 0.88, Set: 2, Sets evaluated: 5, Restarts: 1"
    ]
    assert log_lines(manager) == []


def test_other_methods_have_none_of_this() -> None:
    manager = StatLoggerManager(configure(GRIFFIN_CHAIN))
    assert not any("specext_swift" in name for name in REGISTRY._names_to_collectors)
    assert swift_lines(manager) == []
