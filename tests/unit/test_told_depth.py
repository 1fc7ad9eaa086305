"""The depth of a step's trees goes from the scheduler's choice to the workers, and back into what is learned."""

import pickle
from typing import Any

import pytest
from vllm.v1.outputs import DraftTokenIds

from tests.unit.test_client_room import MOST, SERVING, client
from tests.unit.test_scheduling import configuration, deliver, request, scheduler
from vllm_specext.engine.scheduler.client_room import others_in
from vllm_specext.engine.scheduler.told_depth import depth_in
from vllm_specext.measure.bundled import GRIFFIN_TREE, as_long_as_it_pays
from vllm_specext.tree.draft_size import NOTHING, DraftSize

KEYS = as_long_as_it_pays(GRIFFIN_TREE) | {"keep_step_costs": False}


def choosing(engine: Any, monkeypatch: pytest.MonkeyPatch, chosen: DraftSize) -> list[DraftSize]:
    """Have the ``engine``'s scheduler choose this; what it is told to have asked for, step by step."""
    choice = engine.measured_drafts.choice
    noted: list[DraftSize] = []
    monkeypatch.setattr(choice, "size", lambda requests: chosen)
    monkeypatch.setattr(choice, "note", lambda requests, asked, *rest: noted.append(asked))
    monkeypatch.setattr(choice, "skip", lambda requests, asked: noted.append(asked))
    engine.measured_drafts.follow()
    return noted


@pytest.mark.parametrize(
    ("chosen", "told"),
    [(DraftSize(24, 3), 3), (DraftSize(24, 4), None), (DraftSize(3, 3), None), (NOTHING, None)],
    ids=["shallow", "deep", "chain", "nothing"],
)
def test_workers_are_told_of_trees_that_are_shallower_than_they_can_be(
    monkeypatch: pytest.MonkeyPatch, chosen: DraftSize, told: int | None
) -> None:
    engine = scheduler(configuration(KEYS))
    noted = choosing(engine, monkeypatch, chosen)
    engine.add_request(request("only"))
    for _ in range(3):
        output = engine.schedule()
        assert output.num_spec_tokens_to_schedule == chosen.nodes
        assert depth_in(pickle.loads(pickle.dumps(output))) == told  # as it goes to workers in other processes
        deliver(engine, output)
        engine.update_draft_token_ids(DraftTokenIds(["only"], [[7] * chosen.nodes]))
    assert noted == [chosen] * 3


def test_a_number_that_somebody_else_has_set_is_drafted_as_deep_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """As benchmarks do, which compare numbers of tokens."""
    engine = scheduler(configuration(KEYS))
    noted = choosing(engine, monkeypatch, DraftSize(24, 3))
    engine.dynamic_sd_lookup[:] = [15] * len(engine.dynamic_sd_lookup)
    engine.add_request(request("only"))
    output = engine.schedule()
    assert (output.num_spec_tokens_to_schedule, depth_in(output)) == (15, None)
    deliver(engine, output)
    assert noted == [DraftSize(15, 4)]


def test_requests_beside_a_clients_tree_keep_their_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(configuration(SERVING))
    own = DraftSize(15, 3)
    assert own in engine.measured_drafts.choice._sizes
    noted = choosing(engine, monkeypatch, own)
    engine.add_request(request("other"))
    engine.add_request(client("client"))
    output = engine.schedule()
    assert (output.num_spec_tokens_to_schedule, others_in(output), depth_in(output)) == (MOST, 15, 3)
    deliver(engine, output)
    assert noted == [own]
