"""OpenAI's ``prediction`` through the real server and client: the same answers, its usage, and what is refused."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.e2e.conftest import Client
from vllm_specext.measure.bundled import GRIFFIN_TREE
from vllm_specext.measure.server import Server

GIVEN = {"method": "given", "adaptive_drafts": False}
SETTINGS: dict[str, Any] = {"model": "bundled", "temperature": 0, "max_tokens": 64}
ASKED = [{"role": "user", "content": "What does numpy.mean do?"}]
PROMPT = "def mean(values):\n"


@pytest.fixture(scope="module")
def given(logs: Path) -> Iterator[Server]:
    with Server(logs / "given.log", GIVEN, arguments=("--enable-log-requests",)) as server:
        yield server.start()


@pytest.fixture(scope="module")
def openai(given: Server, client: Client) -> OpenAI:
    return client(given)


def predicted(text: Any) -> dict[str, Any]:
    return {"type": "content", "content": text}


def counted(usage: Any) -> tuple[int, int]:
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def chat(openai: OpenAI, prediction: Any = None, **options: Any) -> Any:
    extra = {} if prediction is None else {"prediction": prediction}
    return openai.chat.completions.create(messages=ASKED, **SETTINGS | extra | options)


def complete(openai: OpenAI, prediction: Any = None, **options: Any) -> Any:
    extra = {} if prediction is None else {"prediction": prediction}
    return openai.completions.create(**{"prompt": PROMPT} | SETTINGS | options, extra_body=extra)


def test_a_chats_answer_is_the_same_and_its_usage_counts_the_prediction(given: Server, openai: OpenAI) -> None:
    plain = chat(openai)
    answer = plain.choices[0].message.content
    before = given.metric("vllm:spec_decode_num_drafts_total")
    same = chat(openai, predicted(answer))
    verifications = given.metric("vllm:spec_decode_num_drafts_total") - before
    assert same.choices[0].message.content == answer
    accepted, rejected = counted(same.usage)
    assert accepted > 0.8 * same.usage.completion_tokens
    assert rejected < 0.2 * same.usage.completion_tokens
    assert 0 < verifications < same.usage.completion_tokens / 5
    assert plain.usage.completion_tokens_details is None


def test_parts_are_one_prediction_and_nonsense_is_rejected(openai: OpenAI) -> None:
    answer = chat(openai).choices[0].message.content
    half = len(answer) // 2
    parts = [{"type": "text", "text": text} for text in (answer[:half], answer[half:])]
    whole, in_parts = chat(openai, predicted(answer)), chat(openai, predicted(parts))
    assert in_parts.choices[0].message.content == answer
    assert counted(in_parts.usage) == counted(whole.usage)
    nonsense = chat(openai, predicted("zebra quantum 17 " * 30))
    assert nonsense.choices[0].message.content == answer
    accepted, rejected = counted(nonsense.usage)
    assert accepted <= 2
    assert rejected > 60


def test_a_completions_usage_counts_choices_together(openai: OpenAI) -> None:
    plain = complete(openai, n=2, temperature=0.8, seed=5)
    text = plain.choices[0].text
    same = complete(openai, predicted(text), n=2, temperature=0.8, seed=5)
    assert [choice.text for choice in same.choices] == [choice.text for choice in plain.choices]
    accepted, rejected = counted(same.usage)
    assert accepted > 20
    assert rejected > 20  # of the other choice
    single = complete(openai, predicted(complete(openai).choices[0].text))
    assert counted(single.usage)[0] > 0.8 * single.usage.completion_tokens


@pytest.mark.parametrize("kind", [chat, complete])
def test_streams_have_the_numbers_in_the_last_chunk_if_usage_is_asked_for(openai: OpenAI, kind: Any) -> None:
    def text_of(choice: Any) -> str:
        return choice.message.content if kind is chat else choice.text

    plain = kind(openai)
    prediction = predicted(text_of(plain.choices[0]))
    whole = kind(openai, prediction)
    for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
        chunks = list(kind(openai, prediction, stream=True, stream_options=options))
        pieces = [c.choices[0].delta.content if kind is chat else c.choices[0].text for c in chunks if c.choices]
        assert "".join(piece or "" for piece in pieces) == text_of(plain.choices[0])
        assert counted(chunks[-1].usage) == counted(whole.usage)
    without = list(kind(openai, prediction, stream=True))
    assert all(chunk.usage is None for chunk in without)


def test_token_ids_can_be_given_instead(openai: OpenAI) -> None:
    plain = openai.completions.create(prompt=PROMPT, **SETTINGS, extra_body={"return_token_ids": True})
    ids = plain.choices[0].token_ids
    extra = {"vllm_xargs": {"prediction_token_ids": ids}}
    same = openai.completions.create(prompt=PROMPT, **SETTINGS, extra_body=extra)
    assert same.choices[0].text == plain.choices[0].text
    assert counted(same.usage) == (len(ids), 0)


LONG = "x y " * 4000
REFUSED: list[tuple[Any, str]] = [
    ("text", "'prediction' must be {'type': 'content'"),
    (predicted(7), "'prediction' must be {'type': 'content'"),
    (predicted([{"type": "image_url", "image_url": {"url": "http://x"}}]), "'prediction' must be {'type': 'content'"),
    (predicted(LONG), "'prediction' has more tokens, but at most "),
    (predicted(LONG * 400), "'prediction' has 6400000 characters, but at most "),
    ([[[[[]]]]], "'prediction' must be {'type': 'content'"),
]


@pytest.mark.parametrize(("prediction", "sentence"), REFUSED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("kind", [chat, complete])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_prediction_is_answered_with_400(
    openai: OpenAI, kind: Any, prediction: Any, sentence: str, stream: bool
) -> None:
    with pytest.raises(BadRequestError) as caught:
        kind(openai, prediction, stream=stream)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("xargs", "sentence"),
    [
        ({"prediction_token_ids": "text"}, "must be a list of token ids from 0 to 2047"),
        ({"prediction_token_ids": [1, 99999]}, "must be a list of token ids from 0 to 2047"),
        ({"prediction_token_ids": [1] * 5000}, "has 5000 tokens, but at most "),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_that_are_none_are_answered_with_400(openai: OpenAI, xargs: Any, sentence: str, stream: bool) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        openai.completions.create(prompt=PROMPT, **SETTINGS, stream=stream, extra_body={"vllm_xargs": xargs})


def test_given_twice_is_answered_with_400(openai: OpenAI) -> None:
    extra = {"prediction": predicted("x"), "vllm_xargs": {"prediction_token_ids": [1]}}
    with pytest.raises(BadRequestError, match="given twice"):
        openai.completions.create(prompt=PROMPT, **SETTINGS, extra_body=extra)


def test_half_a_character_is_answered_with_400(given: Server) -> None:
    """Which the client would not send."""
    body = json.dumps({"prompt": PROMPT, **SETTINGS, "prediction": predicted("\ud800")}).encode()
    request = urllib.request.Request(f"{given.url}/v1/completions", body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 400
    assert "half of a surrogate pair" in caught.value.read().decode()


def test_the_server_goes_on_and_logs_no_prediction(given: Server, openai: OpenAI) -> None:
    """Not even where the parameters of requests are logged."""
    complete(openai, predicted("an unmistakable prediction"))
    log = given.log.read_text(encoding="utf-8")
    assert "unmistakable" not in log
    shown = [line for line in log.splitlines() if "prediction_token_ids" in line and "Received request" in line]
    assert shown
    assert all(re.search(r"'prediction_token_ids': <\d+ token ids>", line) for line in shown)
    assert complete(openai).choices[0].text


def test_a_server_with_draft_trees_reads_predictions_too(logs: Path, client: Client) -> None:
    trees = GRIFFIN_TREE | {"prediction_tokens": GRIFFIN_TREE["num_speculative_tokens"], "adaptive_drafts": False}
    with Server(logs / "trees.log", trees) as server:
        openai = client(server.start())
        count = "vllm:spec_decode_num_drafts_total"
        plain = chat(openai)
        alone = server.metric(count)
        answer = plain.choices[0].message.content
        same = chat(openai, predicted(answer))
        verifications = server.metric(count) - alone
    assert same.choices[0].message.content == answer
    accepted, _ = counted(same.usage)
    assert accepted > 0.8 * same.usage.completion_tokens
    assert 0 < verifications < alone / 2


@pytest.mark.extended
def test_a_server_without_a_tokenizer_reads_token_ids_alone(logs: Path, client: Client) -> None:
    with Server(logs / "given-ids.log", GIVEN, arguments=("--skip-tokenizer-init",)) as server:
        openai = client(server.start())
        asked = SETTINGS | {"prompt": [277, 306, 511, 82]}

        def ids(**extra: Any) -> list[int]:
            body = {"return_token_ids": True, "detokenize": False} | extra
            return openai.completions.create(**asked, extra_body=body).choices[0].token_ids

        answer = ids()
        before = server.metric("vllm:spec_decode_num_accepted_tokens_total")
        assert ids(vllm_xargs={"prediction_token_ids": answer}) == answer
        assert server.metric("vllm:spec_decode_num_accepted_tokens_total") - before > 40
        with pytest.raises(BadRequestError, match="cannot read; give its token ids as 'prediction_token_ids'"):
            ids(prediction=predicted("some text"))
