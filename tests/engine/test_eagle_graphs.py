"""Drafting EAGLE-3 trees in CUDA graphs: what they would replay on a device is recorded, padded as they are."""

from collections.abc import Callable

import pytest

from tests.engine.conftest import Result, eagle3
from tests.engine.test_lossless import differing

pytestmark = pytest.mark.extended  # the graphs are those of GRIFFIN's trees (test_trees.py)

Engines = Callable[..., Result]

SIZES = [2, 5, 8]
DRAFTS, ACCEPTED = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"


@pytest.fixture(scope="module")
def in_graphs(engines: Engines) -> Result:
    return engines(eagle3(24, 4), graphs=SIZES, keep_async=True)


def test_trees_grown_in_graphs_are_those_grown_without(engines: Engines, in_graphs: Result) -> None:
    """Nothing is read of what the target leaves once its next step has begun, nor of the rows that pad a batch."""
    assert differing(in_graphs, engines({})) == []
    assert set(in_graphs["replays"]) == set(SIZES)
    eager = engines(eagle3(24, 4), keep_async=True)["counters"]
    for counter in (DRAFTS, ACCEPTED):
        assert in_graphs["counters"][counter] == pytest.approx(eager[counter], rel=0.02)


def test_states_of_the_step_before_would_be_noticed(engines: Engines, in_graphs: Result) -> None:
    late = engines(eagle3(24, 4), graphs=SIZES, keep_async=True, sabotage="read_states_of_the_step_before")
    assert late["counters"][ACCEPTED] < 0.5 * in_graphs["counters"][ACCEPTED]
