"""Every kind of request gets from a server with GRIFFIN trees what it gets without drafts; what cannot be served is
refused in a sentence, and the server lives on.

Sampled answers are compared with those of the same server to requests without drafts, because on a CPU the stock server
draws its noise in another way.
"""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from tokenizers import Tokenizer

from tests.e2e.test_openai_client import complete
from vllm_specext.measure.bundled import TARGET
from vllm_specext.measure.server import Server, speculation

UNDRAFTED = {"vllm_xargs": {"speculation": False}}
SAMPLED = {"temperature": 1.0, "seed": 11}
WORDS = {"structured_outputs": {"regex": "[a-z]{3,8}( [a-z]{3,8}){6}"}}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "top-p": SAMPLED | {"top_p": 0.8},
    "min-p": SAMPLED | {"extra": {"min_p": 0.1}},
    "logit bias": SAMPLED | {"logit_bias": {"198": 2.5, "11": -100}},
    "penalties": SAMPLED | {"presence_penalty": 0.7, "frequency_penalty": 0.3},
    "bad words": SAMPLED | {"extra": {"bad_words": [" the", "self"]}},
    "allowed tokens": SAMPLED | {"extra": {"allowed_token_ids": list(range(0, 2048, 3))}},
    "minimum length": {"extra": {"min_tokens": 24, "stop_token_ids": [198]}},
    "regular expression": SAMPLED | {"extra": WORDS},
}
"""Arguments of ``complete``."""
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "maximum": 999}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_with_drafts_gets_the_tokens_of_one_without(
    kind: str, griffin: Server, with_drafts: OpenAI, prompts: list[str]
) -> None:
    options = dict(KINDS[kind])
    extra = options.pop("extra", {})
    if extra is not WORDS:  # whose end is the grammar's
        extra = extra | {"ignore_eos": True}
    before = speculation(griffin)
    drafted = complete(with_drafts, prompts[6], **options, extra=extra)
    between = speculation(griffin)
    plain = complete(with_drafts, prompts[6], **options, extra=extra | UNDRAFTED)
    after = speculation(griffin)
    assert drafted.choices[0].token_ids == plain.choices[0].token_ids
    assert drafted.usage == plain.usage
    assert (between - before).verifications > 0
    assert (after - between).verifications == 0


@pytest.mark.parametrize("options", [{}, {"logit_bias": {"198": 2.5, "11": -100}}], ids=["greedy", "logit bias"])
def test_a_request_that_switches_speculation_off_gets_the_stock_servers_tokens(
    with_drafts: OpenAI, without: OpenAI, prompts: list[str], options: dict[str, Any]
) -> None:
    ours = complete(with_drafts, prompts[7], **options, extra=UNDRAFTED)
    assert ours.choices[0].token_ids == complete(without, prompts[7], **options).choices[0].token_ids


def test_an_answer_in_a_json_schema_is_that_of_the_stock_server(with_drafts: OpenAI, without: OpenAI) -> None:
    # JSON allows any number of line breaks between its parts, and a small model likes nothing better.
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    texts = {token: tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())}
    without_line_breaks = {str(token): -100 for token, text in texts.items() if "\n" in text and text.isspace()}
    ours, theirs = (
        openai.chat.completions.create(
            model="bundled",
            messages=[{"role": "user", "content": "Name a numpy function and its size."}],
            response_format={"type": "json_schema", "json_schema": {"name": "record", "schema": RECORD}},
            temperature=0,
            max_tokens=64,
            logit_bias=without_line_breaks,
        )
        for openai in (with_drafts, without)
    )
    assert set(json.loads(ours.choices[0].message.content)) == {"name", "size"}
    assert ours.choices[0].message.content == theirs.choices[0].message.content


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"extra": {"vllm_xargs": {"speculation": "off"}}}, "'speculation' must be true or false"),
        ({"extra": {"vllm_xargs": {"speculatoin": False}}}, "'speculatoin' is an unknown key"),
        ({"extra": {"allowed_token_ids": list(range(1025))}}, "'allowed_token_ids' makes 1025"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "'logit_bias' makes 1025"),
        ({"extra": {"min_tokens": 1, "stop_token_ids": list(range(300, 500))}}, "'stop_token_ids' makes 20"),
        ({"extra": {"bad_words": [f"the mean of {n} values, " * 4 for n in range(40)]}}, "'bad_words' makes"),
    ],
    ids=["switch", "key", "allowed tokens", "logit bias", "stop tokens", "bad words"],
)
def test_what_cannot_be_served_is_refused_in_a_sentence_and_the_server_lives_on(
    with_drafts: OpenAI, prompts: list[str], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        complete(with_drafts, prompts[0], **options)
    assert refused.value.status_code == 400
    assert sentence in refused.value.message
    assert complete(with_drafts, prompts[0], max_tokens=3).usage.completion_tokens == 3


def test_a_request_after_an_aborted_stream_gets_the_stock_servers_tokens(
    with_drafts: OpenAI, without: OpenAI, prompts: list[str]
) -> None:
    stream = with_drafts.completions.create(
        model="bundled", prompt=prompts[8], max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    assert [next(stream).choices[0].finish_reason for _ in range(3)] == [None] * 3
    stream.close()
    for prompt in (prompts[8], prompts[9]):
        ours, theirs = (complete(openai, prompt).choices[0].token_ids for openai in (with_drafts, without))
        assert ours == theirs
