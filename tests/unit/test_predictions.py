"""OpenAI's ``prediction``: what is text, what is refused with a sentence, and how usage counts it."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_specext.declaration import Reads
from vllm_specext.engine.predictions import PredictionCount, check_prediction, text_of
from vllm_specext.engine.requests import CLIENT_TREE, PREDICTION, Drafting, drafting_for, shorten_in_logs

MODEL: Any = SimpleNamespace(max_model_len=8, get_vocab_size=lambda: 100)


def content(value: Any) -> dict[str, Any]:
    return {"type": "content", "content": value}


def part(text: Any, kind: Any = "text") -> dict[str, Any]:
    return {"type": kind, "text": text}


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        (content("def f():"), "def f():"),
        (content(""), ""),
        (content([]), ""),
        (content([part("a"), part("b\n")]), "ab\n"),
        (content("x") | {"more": 1}, "x"),
    ],
    ids=str,
)
def test_the_text_is_that_of_the_parts_together(prediction: Any, text: str) -> None:
    assert text_of(prediction) == text


@pytest.mark.parametrize(
    "prediction",
    [
        *("text", 7, True, [], {}, ["text"], {"type": "content"}, {"content": "x"}, content("x") | {"type": "text"}),
        *(content(value) for value in (None, 7, {}, part("a"), ["a"], [part(7)], [part("a", "image_url")], [None])),
        content([part("a"), {"type": "text"}]),
        content("x") | {"type": ["content"]},
    ],
    ids=str,
)
def test_another_form_is_refused_in_one_sentence(prediction: Any) -> None:
    with pytest.raises(VLLMValidationError, match=r"^'prediction' must be \{'type': 'content', .*\}\. \(") as caught:
        text_of(prediction)
    assert caught.value.parameter == "prediction"


@pytest.mark.parametrize("value", ["\ud800", "ab\udfffc"])
def test_half_a_character_is_refused(value: str) -> None:
    with pytest.raises(VLLMValidationError, match="'prediction' has half of a surrogate pair"):
        text_of(content(value))


def params(ids: Any) -> SamplingParams:
    return SamplingParams(extra_args={PREDICTION: ids})


@pytest.mark.parametrize("ids", [[], [0, 99], list(range(8))], ids=str)
def test_token_ids_of_the_model_are_accepted(ids: list[int]) -> None:
    check_prediction(params(ids), MODEL)
    check_prediction(SamplingParams(), MODEL)


@pytest.mark.parametrize("ids", ["text", 7, {}, [1, "2"], [1.0], [True], [None], [-1], [100], [2**40], [[1]]], ids=str)
def test_what_is_no_list_of_them_is_refused(ids: Any) -> None:
    with pytest.raises(VLLMValidationError, match="must be a list of token ids from 0 to 99") as caught:
        check_prediction(params(ids), MODEL)
    assert caught.value.parameter == PREDICTION


def test_more_than_the_context_holds_is_refused() -> None:
    with pytest.raises(VLLMValidationError, match="has 9 tokens, but at most 8 tokens fit"):
        check_prediction(params([1] * 9), MODEL)


def request(extra_args: dict[str, Any] | None) -> Any:
    return SimpleNamespace(sampling_params=SamplingParams(extra_args=extra_args), prompt_embeds=None)


@pytest.mark.parametrize(
    ("extra_args", "needed", "drafting"),
    [
        (None, True, Drafting.OFF),
        ({PREDICTION: []}, True, Drafting.OFF),
        ({PREDICTION: [1]}, True, Drafting.TREE),
        ({PREDICTION: [1], "speculation": False}, True, Drafting.OFF),
        (None, False, Drafting.TREE),
    ],
    ids=str,
)
def test_nothing_is_drafted_without_what_the_method_needs(extra_args: Any, needed: bool, drafting: Drafting) -> None:
    assert drafting_for(request(extra_args), Reads.GIVEN, False, needed) is drafting


IDS = [10, 11, 12, 13, 14, 15, 16]


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        (IDS, 7),
        ([], 0),
        ([1, 2, 3, 4], 0),
        (IDS[:3], 3),
        ([10, 11, 99, 13, 14, 15, 16], 3),  # the first two, and the last after three that find the place
        ([*IDS, 5, 6], 7),
        ([*IDS, *IDS], 11),  # the second time from the fourth on
    ],
    ids=str,
)
def test_usage_counts_what_was_foretold_and_what_did_not_come(answer: list[int], accepted: int) -> None:
    counted = PredictionCount(IDS, 3)
    counted.take(0, answer[:2])
    counted.take(0, answer[2:])
    rejected = max(len(IDS) - accepted, 0)
    assert counted.details() == {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}


def test_choices_are_counted_on_their_own_and_added_up() -> None:
    counted = PredictionCount(IDS, 3)
    counted.take((0, 0), IDS)
    counted.take((0, 1), IDS[:2])
    assert counted.details() == {"accepted_prediction_tokens": 9, "rejected_prediction_tokens": 5}


def test_logs_show_how_long_a_prediction_is_and_a_worker_gets_all_of_it() -> None:
    made = params(IDS)
    shorten_in_logs(made)
    assert "'prediction_token_ids': <7 token ids>" in repr(made)
    assert pickle.loads(pickle.dumps(made)).extra_args[PREDICTION] == IDS
    none = SamplingParams(extra_args={PREDICTION: None, CLIENT_TREE: None})
    shorten_in_logs(none)
    assert none.extra_args == {PREDICTION: None, CLIENT_TREE: None}
    other = SamplingParams(extra_args={"speculation": True})
    shorten_in_logs(other)
    shorten_in_logs(None)
    assert other.extra_args == {"speculation": True}
