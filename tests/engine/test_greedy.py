"""Greedy batches draw by one argmax, and every batch gets the tokens that vLLM's whole sampler gives in plain decoding;
the faults below must break it."""

from collections.abc import Callable
from typing import Any

import pytest
from vllm.platforms import current_platform

from tests.engine.conftest import CHAIN, Result, tree
from tests.engine.test_lossless import differing
from tests.engine.workload import GREEDY, PLAIN_WORDS, RECORD, SAMPLING, requests

Engines = Callable[..., Result]

# All of a round run at the same time, so that they are one batch.
NOTHING_ELSE: list[dict[str, Any]] = [
    GREEDY,
    GREEDY | {"logprobs": 3},
    GREEDY | {"structured_outputs": {"json": RECORD}},
    GREEDY | {"logprob_token_ids": [11, 198, 220]},
    GREEDY | {"prompt_logprobs": 2},
    GREEDY | {"stop": ["return", "\n\n"]},
    GREEDY | {"structured_outputs": PLAIN_WORDS, "logprobs": 1},
    GREEDY | {"extra_args": {"speculation": False}},
]
WISHES: list[dict[str, Any]] = [
    GREEDY | {"repetition_penalty": 1.3},
    GREEDY | {"presence_penalty": 0.6, "frequency_penalty": 0.4},
    GREEDY | {"min_tokens": 20, "stop_token_ids": [198]},
    GREEDY | {"bad_words": [" the", "self"]},
    GREEDY | {"logit_bias": {"198": 2.5, "11": -100.0}},
    GREEDY | {"allowed_token_ids": list(range(0, 2048, 3))},
    GREEDY | {"structured_outputs": {"json": RECORD}, "min_tokens": 10},
    GREEDY | {"repetition_penalty": 1.1, "logprobs": 2},
]
SEEDED = [one for one in SAMPLING if one["temperature"]][:4]


def asked(samplings: list[dict[str, Any]], steps: int = 40) -> list[dict[str, Any]]:
    """A round of requests for as many tokens each."""
    made = []
    for request, sampling in zip(requests(len(samplings)), samplings, strict=True):
        ends = {"stop_token_ids", "structured_outputs", "stop"} & sampling.keys()
        own = {"seed": request["sampling"]["seed"], "max_tokens": steps, "ignore_eos": not ends}
        made.append(request | {"sampling": own | sampling})
    return made


ROUNDS = [asked(NOTHING_ELSE), asked(WISHES), asked([*NOTHING_ELSE[:4], *SEEDED]), asked([*WISHES[:4], *SEEDED])]
WAYS = [{"speculative_config": CHAIN}, tree(24, 4)]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    result = engines({}, rounds=ROUNDS, whole_sampler=True)
    assert all(answers["argmax"] == 0 for answers in result["draws"])
    return result


@pytest.mark.parametrize("llm", [pytest.param(WAYS[0], marks=pytest.mark.extended), WAYS[1]], ids=["chain", "tree"])
def test_greedy_and_mixed_batches_give_the_tokens_of_vllms_sampler(
    engines: Engines, plain: Result, llm: dict[str, Any]
) -> None:
    result = engines(llm, rounds=ROUNDS, keep_async=False)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60
    for one, other in zip(result["outputs"], plain["outputs"], strict=True):
        for kind in ("logprobs", "prompt_logprobs"):
            assert len(one[kind]) == len(other[kind])
            for ours, theirs in zip(one[kind], other[kind], strict=True):
                assert ours == pytest.approx(theirs, abs=1e-4)
    assert sum(len(one["logprobs"]) for one in result["outputs"]) > 150


@pytest.mark.parametrize("llm", WAYS, ids=["chain", "tree"])
def test_a_batch_of_greedy_requests_never_sees_the_sampler(engines: Engines, llm: dict[str, Any]) -> None:
    result = engines(llm, rounds=ROUNDS, keep_async=False)
    nothing_else, wishes, mixed, both = result["draws"]
    assert nothing_else["sampler"] == 0
    assert nothing_else["argmax"] >= 10
    # All run to the end with something that is a wish, but for those whose grammar is satisfied.
    assert wishes["sampler"] >= 10
    assert mixed["sampler"] >= 10
    assert both["sampler"] >= 10


def test_plain_decoding_on_a_cpu_draws_by_one_argmax_too(engines: Engines, plain: Result) -> None:
    if not current_platform.is_cpu():
        pytest.skip("for CPUs")
    result = engines({}, rounds=ROUNDS)
    assert differing(result, plain) == []
    assert result["draws"][0]["sampler"] == 0
    assert result["draws"][0]["argmax"] >= 40


@pytest.mark.parametrize(
    ("sabotage", "first"),
    [("take_every_batch_for_greedy", 2), pytest.param("overlook_what_changes_logits", 1, marks=pytest.mark.extended)],
)
def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result, sabotage: str, first: int) -> None:
    """It leaves alone what needs nothing but an argmax."""
    faulty = engines(WAYS[0], rounds=ROUNDS, sabotage=sabotage)
    found = differing(faulty, plain)
    assert found
    assert min(found) >= len(ROUNDS[0])
    rounds = {index // len(ROUNDS[0]) for index in found}
    assert first in rounds
