"""Predicted answers on the real engine: the tokens of plain decoding whatever is predicted; the faults below must break
that."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import AGAIN, ROUND, TIGHT_FOR_TREES, Result, eagle3, moa, of_method, tree
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_eagle_formats import eagle1
from tests.engine.test_lossless import FEW, differing
from tests.engine.test_mtp_tree import mimo  # noqa: F401 - a fixture
from tests.engine.test_mtp_tree import trees as mtp
from tests.engine.workload import TARGET
from vllm_specext.engine.requests import PREDICTION
from vllm_specext.measure.bundled import MODELS

Engines = Callable[..., Result]
GIVEN: dict[str, Any] = {"speculative_config": {"method": "given", "adaptive_drafts": False}}
TIGHT: dict[str, Any] = {"max_num_batched_tokens": 48, "max_model_len": 384, "num_gpu_blocks_override": 13}
"""Less room than for other methods: predicted answers are soon done."""
VOCABULARY = 2048


def edited(answer: list[int], chance: random.Random) -> list[int]:
    """Three places of the answer changed: a token replaced, some left out, some put in."""
    made = list(answer)
    for change in range(min(3, len(made) // 6)):
        place = chance.randrange(len(made) - 2)
        made[place : place + (1, 2, 0)[change]] = [chance.randrange(VOCABULARY) for _ in range((1, 0, 3)[change])]
    return made


def prediction(kind: int, answer: list[int], chance: random.Random) -> list[int] | None:
    """By ``kind``: the answer itself, edited, nonsense, the answer after other text and before more, or none."""
    nonsense = [chance.randrange(VOCABULARY) for _ in range(40)]
    return (answer, edited(answer, chance), nonsense, [*nonsense, *answer, *nonsense], None)[kind]


KINDS, NONSENSE = 5, 2


def predicting(asked: list[dict[str, Any]], answers: list[dict[str, Any]], kind: int | None = None) -> list[dict]:
    """The same requests with predictions of every kind, or of one."""
    chance = random.Random(1)
    made = []
    for index, (one, answer) in enumerate(zip(asked, answers, strict=True)):
        given = prediction(index % KINDS if kind is None else kind, answer["ids"], chance)
        extra = {} if given is None else {PREDICTION: given}
        sampling = one["sampling"] | {"extra_args": one["sampling"].get("extra_args", {}) | extra}
        made.append(one | {"sampling": sampling})
    return made


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


@pytest.fixture(scope="module")
def rounds(plain: Result) -> list[list[dict[str, Any]]]:
    answers = plain["outputs"]
    return [predicting(ROUND, answers[: len(ROUND)]), predicting(AGAIN, answers[len(ROUND) :])]


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


@pytest.mark.parametrize(
    ("llm", "asynchronous"),
    [
        ({}, True),
        (TIGHT, False),
        pytest.param({}, False, marks=pytest.mark.extended),
        pytest.param(TIGHT, True, marks=pytest.mark.extended),
    ],
    ids=["roomy-async", "tight-sync", "roomy-sync", "tight-async"],
)
def test_predictions_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, rounds: list[Any], llm: dict[str, Any], asynchronous: bool
) -> None:
    result = engines(GIVEN | llm, rounds=rounds, keep_async=asynchronous)
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert accepted(result) > 200
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert (result["counters"]["vllm:num_preemptions"] > 0) == bool(llm)


@pytest.mark.parametrize(
    "kind", [0, pytest.param(1, marks=pytest.mark.extended), 2, 3], ids=["answer", "edited", "nonsense", "within"]
)
def test_one_kind_of_prediction_for_all(engines: Engines, plain: Result, kind: int) -> None:
    """Tokens per verification are those that the prediction allows: 33 at most. Nonsense is hardly ever drafted."""
    few = predicting(FEW, plain["outputs"][: len(FEW)], kind)
    result = engines(GIVEN, rounds=[few])
    assert differing(result, {"outputs": plain["outputs"][: len(FEW)]}) == []
    verifications = result["counters"]["vllm:spec_decode_num_drafts"]
    if kind == NONSENSE:
        assert verifications < 5
    else:
        assert (10, 4, None, 4)[kind] < 1 + accepted(result) / verifications <= 33


def test_without_predictions_nothing_is_verified(engines: Engines, plain: Result) -> None:
    result = engines(GIVEN, rounds=[FEW])
    assert differing(result, {"outputs": plain["outputs"][: len(FEW)]}) == []
    assert result["counters"]["vllm:spec_decode_num_drafts"] == 0


@pytest.mark.parametrize("sabotage", ["shift_target_positions", "accept_every_draft"])
def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result, sabotage: str) -> None:
    few = predicting(FEW, plain["outputs"][: len(FEW)], kind=1)
    faulty = engines(GIVEN, rounds=[few], sabotage=sabotage)
    assert differing(faulty, {"outputs": plain["outputs"][: len(FEW)]}) != []


def test_predictions_follow_the_load_when_speed_is_measured(engines: Engines, plain: Result, rounds: list[Any]) -> None:
    """As many tokens are drafted as the scheduler chooses, drawn here from all that it may."""
    adaptive = {"speculative_config": {"method": "given"}}
    result = engines(adaptive, rounds=rounds, sabotage="draw_sizes")
    assert differing(result, plain) == []
    assert accepted(result) > 60


def test_prompts_serve_as_predictions_where_none_is_given(engines: Engines, plain: Result, rounds: list[Any]) -> None:
    """Prompt lookup, beside requests with predictions and alone."""
    looking = {"speculative_config": GIVEN["speculative_config"] | {"use_prompt": True, "match_tokens": 2}}
    assert differing(engines(looking | TIGHT, rounds=rounds, keep_async=True), plain) == []
    alone = engines(looking, rounds=[FEW])
    assert differing(alone, {"outputs": plain["outputs"][: len(FEW)]}) == []
    assert alone["counters"]["vllm:spec_decode_num_drafts"] > 10
    assert accepted(alone) > 3  # the prompts are repeated little


TREES: dict[str, Any] = {
    "griffin": tree(24, 4),
    "moa": moa(24, 4),
    "eagle3-tree": eagle3(24, 4),
    "dflash-tree": of_method("dflash-tree", MODELS / "dflash", 24, 4, tree_depth=4),
    "draft-model-tree": of_method("draft-model-tree", TARGET, 24, 4),
}


def reading(config: dict[str, Any], tokens: int = 20) -> dict[str, Any]:
    """``config`` of a method, which drafts so many tokens of predictions first."""
    return {"speculative_config": config["speculative_config"] | {"prediction_tokens": tokens}}


@pytest.mark.parametrize(
    ("method", "asynchronous"),
    [
        pytest.param("griffin", False, marks=pytest.mark.extended),
        *(
            pytest.param(method, method != "eagle3-tree", marks=() if method == "griffin" else pytest.mark.extended)
            for method in TREES
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else ("sync", "async")[given],
)
def test_predictions_are_drafted_before_a_methods_trees(
    engines: Engines, plain: Result, rounds: list[Any], method: str, asynchronous: bool
) -> None:
    """Chains longer than trees are deep are verified beside trees. More is accepted than by either alone."""
    llm = TIGHT_FOR_TREES if asynchronous else {}
    result = engines(reading(TREES[method]) | llm, rounds=rounds, keep_async=asynchronous)
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert (result["counters"]["vllm:num_preemptions"] > 0) == asynchronous
    verified = result["counters"]["vllm:spec_decode_num_drafts"]
    assert accepted(result) / verified > 2 + 0.5 * (method == "griffin")


def test_requests_without_predictions_get_trees_and_others_what_they_predict(engines: Engines, plain: Result) -> None:
    answers = plain["outputs"][: len(FEW)]
    config = reading(tree(24, 4))
    trees, whole = (engines(config, rounds=[asked]) for asked in (FEW, predicting(FEW, answers, kind=0)))
    for result in (trees, whole):
        assert differing(result, {"outputs": answers}) == []
    per_verification = [
        1 + accepted(result) / result["counters"]["vllm:spec_decode_num_drafts"] for result in (trees, whole)
    ]
    assert per_verification[0] < 7
    assert per_verification[1] > 10


def test_where_the_prediction_ends_the_drafter_goes_on(engines: Engines, plain: Result) -> None:
    """After an edit more is accepted than by the prediction or by trees alone, so that the drafter has read well what
    was predicted."""
    answers = plain["outputs"][: len(FEW)]
    few = predicting(FEW, answers, kind=1)
    both, given, trees = (
        engines(config, rounds=[asked])
        for config, asked in ((reading(tree(24, 4)), few), (GIVEN, few), (tree(24, 4), FEW))
    )
    assert differing(both, {"outputs": answers}) == []
    assert accepted(both) > 1.05 * max(accepted(given), accepted(trees))


def test_predictions_of_one_token_more_than_trees_are_deep(engines: Engines, plain: Result, rounds: list[Any]) -> None:
    """As many rows as a small model reads of a path and the token after it, which must not be taken for those."""
    config = reading(TREES["draft-model-tree"], tokens=7)
    assert differing(engines(config, rounds=rounds), plain) == []


@pytest.mark.parametrize(
    "sabotage", ["skip_compaction", pytest.param("shift_target_positions", marks=pytest.mark.extended)]
)
def test_a_deliberate_fault_beside_trees_is_noticed(
    engines: Engines, plain: Result, rounds: list[Any], sabotage: str
) -> None:
    assert differing(engines(reading(tree(24, 4)), rounds=rounds, sabotage=sabotage), plain) != []


@pytest.mark.extended
def test_predictions_before_the_trees_of_methods_that_share_their_code(
    engines: Engines,
    plain: Result,
    rounds: list[Any],
    folder: Path,  # noqa: F811
    mimo: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    eagle = of_method("eagle-tree", eagle1(tmp_path / "drafter"), 24, 4)
    for config in (dspark(folder, 24, 4), eagle):
        assert differing(engines(reading(config), rounds=rounds, keep_async=True), plain) == []
    with_module = {"model": str(mimo)}
    expected = engines(with_module)
    assert differing(engines(reading(mtp(mimo)) | with_module, rounds=rounds, keep_async=True), expected) == []
