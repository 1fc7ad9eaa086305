"""Trees of clients are verified whole while others are drafted what suits the load.

On real schedulers of both kinds; the workers are played by the tests.
"""

from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from tests.unit.test_scheduling import configuration, deliver, drafted, request, scheduler
from vllm_specext.engine.requests import CLIENT_TREE
from vllm_specext.engine.scheduler.client_room import others_in
from vllm_specext.measure.bundled import MODELS

MOST, OWN = 24, 8
SERVING = {
    "method": "moa",
    "model": str(MODELS / "moa"),
    "num_speculative_tokens": MOST,
    "tree_top_k": 4,
    "client_drafts": True,
    "keep_step_costs": False,
}
BROUGHT = {"ids": list(range(20)), "parents": list(range(20)), "first_row": 0, "kind": "int8", "ticket": "a"}


@pytest.fixture(scope="module")
def serving() -> VllmConfig:
    return configuration(SERVING | {"num_speculative_tokens_per_batch_size": [[1, 16, OWN]]})


def client(name: str, **sampling: Any) -> Any:
    return request(name, extra_args={CLIENT_TREE: BROUGHT}, **sampling)


def draft(engine: Any, output: SchedulerOutput, trees: dict[str, int]) -> None:
    """The workers' drafts: ``trees`` of clients, nothing for other clients, and for others what is theirs."""
    own = others_in(output)
    own = output.num_spec_tokens_to_schedule if own is None else own
    counts = {name: trees.get(name, 0 if name.startswith("client") else own) for name in output.num_scheduled_tokens}
    engine.update_draft_token_ids(DraftTokenIds(list(counts), [[7] * count for count in counts.values()]))


def test_a_clients_tree_is_whole_and_others_keep_their_number(serving: VllmConfig) -> None:
    engine = scheduler(serving)
    engine.add_request(request("other"))
    before = engine.schedule()
    deliver(engine, before)
    assert (before.num_spec_tokens_to_schedule, others_in(before)) == (OWN, None)
    draft(engine, before, {})
    engine.add_request(client("client"))
    prompt = engine.schedule()
    assert drafted(prompt) == {"other": OWN, "client": 0}
    assert (prompt.num_spec_tokens_to_schedule, others_in(prompt)) == (MOST, OWN)
    deliver(engine, prompt)
    draft(engine, prompt, {"client": 19})
    verified = engine.schedule()
    assert drafted(verified) == {"other": OWN, "client": 19}
    assert (verified.num_spec_tokens_to_schedule, others_in(verified)) == (OWN, None)
    deliver(engine, verified)
    draft(engine, verified, {"client": OWN})  # would be another tree, of which there is none
    assert drafted(engine.schedule()) == {"other": OWN, "client": 0}


def test_asynchronous_scheduling_promises_each_its_own(serving: VllmConfig) -> None:
    engine = scheduler(serving, AsyncScheduler)
    engine._custom_processors = True
    engine.add_request(request("other"))
    engine._custom_processors = False
    engine.add_request(client("client"))
    flying = engine.schedule()
    assert (flying.num_spec_tokens_to_schedule, others_in(flying)) == (MOST, OWN)
    for wanted in ({"other": 6, "client": 20}, {"other": 6, "client": 0}, {"other": 6, "client": 0}):
        output = engine.schedule()
        assert drafted(output) == wanted
        assert (output.num_spec_tokens_to_schedule, others_in(output)) == (OWN, None)
        deliver(engine, flying)
        flying = output


def test_among_clients_alone_the_server_drafts_nothing(serving: VllmConfig) -> None:
    engine = scheduler(serving)
    engine.add_request(client("client"))
    assert others_in(engine.schedule()) == 0


def test_a_client_that_goes_away_leaves_no_room_behind(serving: VllmConfig) -> None:
    engine = scheduler(serving)
    for one in (client("client"), request("other")):
        engine.add_request(one)
    engine.finish_requests("client", RequestStatus.FINISHED_ABORTED)
    assert engine._clients._waiting == {}
    assert others_in(engine.schedule()) is None


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
def test_steps_with_clients_are_not_measured(base: type[Scheduler], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(configuration(SERVING), base)
    choice = engine.measured_drafts.choice
    noted: list[str] = []
    skip, note = choice.skip, choice.note
    monkeypatch.setattr(choice, "skip", lambda *args: (noted.append(f"skip {args[1].nodes}"), skip(*args))[1])
    monkeypatch.setattr(choice, "note", lambda *args: (noted.append(f"note {args[1].nodes}"), note(*args))[1])

    def step() -> None:
        output = engine.schedule()
        deliver(engine, output)
        if base is Scheduler:
            draft(engine, output, {"client": 19})

    engine.add_request(request("other"))
    for _ in range(3):
        step()
    engine.add_request(client("client", max_tokens=2))
    for _ in range(3):
        step()
    # The other's prompt, two steps, the client's prompt, what verifies its tree, and another step.
    assert noted == ["skip 0", "note 0", "note 0", "skip 0", "skip 0", "note 0"]
