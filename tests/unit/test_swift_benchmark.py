"""What the benchmark of SWIFT's search makes of its measurements; no engine is started."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.swift_search import Probe, Step, acceptance, cost, plot, restarting, right_share, table
from vllm_specext.methods.swift.search.acceptance import AVERAGED_VERIFICATIONS, AcceptanceWatch, DraftOutcome
from vllm_specext.methods.swift.search.skip_set import SkipSet


def test_the_searchs_own_time_is_told_apart_from_its_passes() -> None:
    quiet = [Step(whole=0.020, learning=0.001) for _ in range(5)]
    searching = [Step(whole=0.035, learning=0.015, passes=0.010, suggestion=busy) for busy in (False, True)]
    prefill = [Step(whole=0.100)]
    found = cost([*quiet, *searching, *prefill])
    assert found["median_step_without_search_ms"] == pytest.approx(19)
    assert found["steps_with_evaluation"] == 2
    assert found["median_evaluation_ms"] == pytest.approx(10)
    assert found["search_beside_evaluation_ms"]["largest"] == pytest.approx(5)
    assert found["largest_step_beside_evaluation_relative_to_median"] == pytest.approx(24 / 19)
    assert found["median_step_while_a_suggestion_is_computed_relative"] == pytest.approx(1)
    assert found["share_of_time_evaluation"] == pytest.approx(20 / 270)


def test_acceptance_is_of_levels_and_not_of_verifications() -> None:
    seen = [DraftOutcome(1, 2, 1, 2), DraftOutcome(3, 6, 2, 3)]
    assert (acceptance(seen), right_share(seen)) == (0.5, 0.6)


def test_a_probe_stays_with_its_set_and_counts() -> None:
    probe = Probe(SkipSet.uniform(12), measures=True)
    candidate = probe.propose()
    assert candidate is not None
    assert candidate.skipped == probe.active
    assert not probe.needs_incumbent(candidate, 1.0)
    assert not probe.settle(candidate, 1.0)
    probe.note(DraftOutcome(2, 4, 1, 2))
    assert (probe.right, probe.reached) == (1, 2)
    assert (probe.scores, probe.accepted, probe.depth, probe.verifications) == ([1.0], 2, 4, 1)
    assert Probe(SkipSet.uniform(12), measures=False).propose() is None


@pytest.mark.parametrize("restarts", [True, False])
def test_restarts_can_be_left_out_and_come_back(restarts: bool) -> None:
    def falls() -> bool:
        watch = AcceptanceWatch()
        for accepted in (1, 0):
            for _ in range(2 * AVERAGED_VERIFICATIONS):
                watch.note(DraftOutcome(accepted, 1, accepted, 1))
        return watch.has_fallen

    with restarting(restarts):
        assert falls() == restarts
    assert falls()


def test_results_become_a_table_and_a_picture(tmp_path: Path) -> None:
    phases = [{"first_verification": first} for first in (0, 200)]
    history = [[number, "random", 0.5, 0.6, False] for number in range(30)]
    seen: dict[str, Any] = {"phases": phases, "history": history, "verifications": [[1, 2, 1, 2]] * 400}
    plot({"with restarts": seen, "without": seen}, tmp_path / "search.png")
    assert (tmp_path / "search.png").stat().st_size > 10_000
    row = {"set": "found", "skipped": "attention 1; MLP 2", "matchness": 0.5}
    assert [column.header for column in table([row]).columns] == ["set", "skipped", "matchness"]
