"""What the sharpness of drafters is learned from on the real engine. It never changes the output, so that only counting
shows it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result, eagle3, moa, of_method, tree
from tests.engine.test_given import predicting
from tests.engine.test_lossless import differing
from tests.engine.workload import DFLASH, GREEDY

Engines = Callable[..., Result]

SOME = [{"ids": one["ids"], "sampling": GREEDY | {"max_tokens": 40, "ignore_eos": True}} for one in ROUND[:6]]
HOT = [one | {"sampling": one["sampling"] | {"temperature": 1.0, "seed": 1}} for one in SOME]
TREES = {
    "griffin": tree(24, 4),
    "eagle3-tree": eagle3(24, 4),
    "moa": moa(24, 4),
    "dflash-tree": of_method("dflash-tree", DFLASH, 24, 4, tree_depth=4),
}


def counts(result: Result) -> tuple[float, float]:
    """Verifications, and tokens that they accepted."""
    counters = result["counters"]
    return counters["vllm:spec_decode_num_drafts"], counters["vllm:spec_decode_num_accepted_tokens"]


@pytest.mark.parametrize("method", TREES)
def test_every_tree_is_learned_from_with_what_was_accepted_of_it(engines: Engines, method: str) -> None:
    result = engines(TREES[method], rounds=[SOME])
    learned, (trees, accepted) = result["learned"], counts(result)
    assert trees > 50
    # The last of a request is not: nothing is drafted after it. Of that one fewer tokens may be emitted than accepted.
    assert trees - len(SOME) <= learned["trees"] <= trees
    assert accepted - 6 * len(SOME) <= learned["accepted"] <= accepted + 6 * len(SOME)


@pytest.mark.parametrize("method", ["griffin", pytest.param("eagle3-tree", marks=pytest.mark.extended)])
def test_trees_come_to_expect_what_is_accepted(engines: Engines, method: str) -> None:
    learned = engines(TREES[method], rounds=[SOME] * 4)["learned"]
    assert learned["expected"] == pytest.approx(learned["accepted"], rel=0.15)
    hot = engines(TREES[method], rounds=[HOT] * 4)["learned"]
    assert hot["expected"] == pytest.approx(hot["accepted"], rel=0.3)  # few are accepted
    # Without having learned, they do not: what was first assumed for greedy requests is not right for these drafters.
    unsharpened = engines(TREES[method], rounds=[SOME] * 4, sabotage="learn_nothing")["learned"]
    assert unsharpened["expected"] < 0.8 * unsharpened["accepted"]


def test_predictions_teach_nothing(engines: Engines) -> None:
    plain = engines({}, rounds=[SOME])
    asked = predicting(SOME, plain["outputs"], kind=0)  # all of the answer
    config: dict[str, Any] = {"speculative_config": TREES["griffin"]["speculative_config"] | {"prediction_tokens": 24}}
    result = engines(config, rounds=[asked])
    assert differing(result, plain) == []
    trees, accepted = counts(result)
    assert accepted > 20 * len(SOME)
    assert result["learned"]["trees"] < trees / 2
    assert result["learned"]["accepted"] < accepted / 2


def test_nothing_is_learned_where_it_is_switched_off(engines: Engines) -> None:
    own = TREES["griffin"]["speculative_config"] | {"calibrated_trees": False}
    published, calibrated = (engines(llm, rounds=[SOME] * 2) for llm in ({"speculative_config": own}, TREES["griffin"]))
    assert published["learned"]["trees"] == 0
    assert differing(published, calibrated) == []
    lengths = [accepted / trees for trees, accepted in map(counts, (published, calibrated))]
    assert 1.1 * lengths[0] < lengths[1]
