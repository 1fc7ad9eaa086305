"""What is drafted for sessions of streaming input, and where their turns go on. On real schedulers of both kinds."""

from types import SimpleNamespace

import pytest
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from tests.unit.test_scheduling import KINDS, LEVELS, NODES, TREE, configuration, deliver, drafted, request, scheduler
from vllm_specext.measure.bundled import GRIFFIN_CHAIN


@pytest.fixture(scope="module")
def trees() -> VllmConfig:
    return configuration(TREE)


@pytest.fixture(scope="module")
def chains() -> VllmConfig:
    return configuration(GRIFFIN_CHAIN)


def test_limits_follow_a_sessions_parameters_and_end_with_the_request(trees: VllmConfig) -> None:
    engine = scheduler(trees)
    live = request("session")
    engine._custom_processors = True
    engine.add_request(live)
    assert engine._draft_limits == {"session": LEVELS}
    engine._custom_processors = False
    update = {"mm_features": None, "prompt_token_ids": [1], "arrival_time": 0.0, "max_tokens": 10}
    for sampling, limits in ((KINDS["off"], {"session": 0}), (KINDS["tree"], {}), (KINDS["off"], {"session": 0})):
        params = SamplingParams(**sampling)
        engine._update_request_as_session(live, SimpleNamespace(**update, sampling_params=params))
        assert engine._draft_limits == limits
    engine.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    assert engine._draft_limits == {}


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
def test_a_session_goes_on_where_max_tokens_ended_its_turn(chains: VllmConfig, base: type[Scheduler]) -> None:
    """Six tokens are emitted in all, of which the turn keeps two."""
    engine = scheduler(chains, base)
    live = request("session", prompt=10, ignore_eos=True)
    live.resumable, live.max_tokens = True, 2
    engine.add_request(live)
    first = engine.schedule()
    if base is Scheduler:
        deliver(engine, first)
        engine.update_draft_token_ids(DraftTokenIds(["session"], [[5, 5, 5, 5]]))
    output = engine.schedule()
    assert drafted(output) == {"session": 4}
    if base is AsyncScheduler:
        deliver(engine, first)
    deliver(engine, output, tokens=5)
    assert live.status is RequestStatus.WAITING_FOR_STREAMING_REQ
    assert list(live.output_token_ids) == [5, 5]
    assert live.num_computed_tokens == 11
    following = request("session", prompt=1)
    following.resumable = True
    engine.add_request(following)
    assert live.prompt_token_ids == [*range(1, 11), 5, 1]
    output = engine.schedule()
    assert output.num_scheduled_tokens["session"] - drafted(output)["session"] == 1


def test_a_session_of_a_target_with_recurrent_layers_drafts_nothing(trees: VllmConfig) -> None:
    """What was accepted beyond a turn's end is in the state, which has no way back."""
    engine = scheduler(trees, AsyncScheduler)
    engine._has_states = True
    live = request("session", prompt=10)
    live.resumable = True
    for each in (live, request("other", prompt=10)):
        engine.add_request(each)
    engine.schedule()
    assert drafted(engine.schedule()) == {"session": 0, "other": NODES}
