"""OpenAI clients get the stock server's answers from a server with drafts: from GRIFFIN's in every form of asking, from
MoA's, SWIFT's and SLEM's, whose way to the client is the same, for completions."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.conftest import DEPTH, Client
from vllm_specext.demo import run
from vllm_specext.demo.run import ask_in_turn, summarize
from vllm_specext.measure.bundled import SWIFT
from vllm_specext.measure.server import Server, speculation
from vllm_specext.methods.swift.search.stored import read_found

SEARCH_METRICS = [
    f"vllm:specext_swift_{name}"
    for name in ("matchness", "acceptance", "set_version", "search_steps_total", "restarts_total")
]
CHAT: dict[str, Any] = {
    "model": "bundled",
    "messages": [{"role": "user", "content": "What does numpy.mean do?"}],
    "temperature": 0,
    "max_tokens": 40,
}


def complete(client: OpenAI, prompt: str, *, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    """``extra``: vLLM's additions to the protocol."""
    return client.completions.create(
        model="bundled",
        prompt=prompt,
        **{"temperature": 0, "max_tokens": 48, **options},
        extra_body={"return_token_ids": True, **(extra or {})},
    )


def test_concurrent_greedy_completions_have_the_tokens_of_the_stock_server(
    drafting: Server, client: Client, without: OpenAI, prompts: list[str]
) -> None:
    def ids(openai: OpenAI) -> list[list[int]]:
        with ThreadPoolExecutor(8) as pool:
            return [r.choices[0].token_ids for r in pool.map(lambda prompt: complete(openai, prompt), prompts)]

    assert ids(client(drafting)) == ids(without)


@pytest.mark.parametrize(
    "drafting",
    ["griffin", *(pytest.param(name, marks=pytest.mark.extended) for name in ("swift", "moa", "slem"))],
    indirect=True,
)
def test_the_demonstrations_row_is_identical_and_drafts_pay(
    drafting: Server, stock: Server, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PASSES", 1)
    answers = ask_in_turn({"plain": stock, "trees": drafting}, prompts[::3], lambda _: None)
    plain, drafted = answers["plain"], answers["trees"]
    row = summarize("trees", drafted, plain, plain)
    assert row.identical
    assert row.requests == 8
    assert row.tokens_per_verification > 1.4
    assert row.accepted_per_depth == sorted(row.accepted_per_depth, reverse=True)
    assert all(answer.speculation.verifications == 0 for answer in plain)


def test_prometheus_counts_verifications_and_accepted_tokens(
    griffin: Server, with_drafts: OpenAI, prompts: list[str]
) -> None:
    before = speculation(griffin)
    tokens = complete(with_drafts, prompts[0]).usage.completion_tokens
    counted = speculation(griffin) - before
    assert counted.verifications > 0
    assert len(counted.accepted) == DEPTH
    assert counted.accepted[0] > 0
    # Every verification emits its accepted tokens and one more; prefill emits one; the last may be cut at max_tokens.
    assert tokens - 1 <= counted.verifications + sum(counted.accepted) <= tokens - 1 + DEPTH


def test_our_metrics_add_up_to_vllms(griffin: Server, with_drafts: OpenAI, prompts: list[str]) -> None:
    complete(with_drafts, prompts[0])
    counted = speculation(griffin)
    drafts = griffin.metric("vllm:spec_decode_num_drafts_total")
    accepted = griffin.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert counted.verifications == drafts > 0
    assert counted.nodes == griffin.metric("vllm:spec_decode_num_draft_tokens_total")
    assert counted.nodes == griffin.metric("vllm:specext_num_draft_nodes_total")
    assert sum(counted.accepted) == accepted > 0
    assert griffin.metric("vllm:specext_acceptance_length_count") == drafts
    assert griffin.metric("vllm:specext_acceptance_length_sum") == drafts + accepted


@pytest.mark.parametrize("drafting", ["swift"], indirect=True)
def test_the_search_is_seen_in_prometheus_and_in_the_log_and_kept(
    drafting: Server, client: Client, prompts: list[str]
) -> None:
    before = drafting.metric("vllm:specext_swift_search_steps_total")
    complete(client(drafting), prompts[0], max_tokens=96, extra={"ignore_eos": True})
    samples = {sample.name: sample.value for sample in drafting.samples() if "specext_swift" in sample.name}
    assert set(SEARCH_METRICS) <= set(samples)
    assert 0 < samples["vllm:specext_swift_matchness"] <= 1
    assert samples["vllm:specext_swift_acceptance"] > 0.3
    steps = samples["vllm:specext_swift_search_steps_total"]
    assert steps > before or steps > SWIFT["swift_max_steps"]
    assert samples["vllm:specext_swift_set_version"] >= 1
    found = read_found(drafting.log.with_suffix(".json"))
    assert found.target.layers == 12
    assert f"SWIFT skips {found.skipped}: " in drafting.log.read_text()


def test_our_metrics_are_absent_without_our_methods(griffin: Server, unused: Server) -> None:
    names = [{sample.name for sample in server.samples() if "specext" in sample.name} for server in (griffin, unused)]
    assert names[0]
    assert not names[1]


def test_chat_answers_are_the_same(with_drafts: OpenAI, without: OpenAI) -> None:
    answer, expected = (openai.chat.completions.create(**CHAT) for openai in (with_drafts, without))
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].message.content == expected.choices[0].message.content
    assert answer.usage == expected.usage


def test_streamed_pieces_make_up_the_whole_answer(with_drafts: OpenAI, prompts: list[str]) -> None:
    whole = complete(with_drafts, prompts[1])
    stream = with_drafts.completions.create(
        model="bundled",
        prompt=prompts[1],
        temperature=0,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].text
    assert len(pieces) > 1
    assert chunks[-1].usage == whole.usage


def test_streamed_chat_makes_up_the_whole_answer(with_drafts: OpenAI) -> None:
    whole = with_drafts.chat.completions.create(**CHAT).choices[0].message.content
    chunks = with_drafts.chat.completions.create(**CHAT, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole


def test_two_choices_differ_and_repeat_with_their_seed(with_drafts: OpenAI, prompts: list[str]) -> None:
    def texts(seed: int) -> list[str]:
        answer = complete(with_drafts, prompts[2], n=2, temperature=1.0, top_p=0.95, seed=seed)
        assert [choice.index for choice in answer.choices] == [0, 1]
        return [choice.text for choice in answer.choices]

    first = texts(1)
    assert first[0] != first[1]
    assert texts(1) == first
    assert texts(2) != first


def test_logprobs_are_those_of_the_stock_server(with_drafts: OpenAI, without: OpenAI, prompts: list[str]) -> None:
    ours, theirs = (complete(openai, prompts[3], logprobs=3).choices[0].logprobs for openai in (with_drafts, without))
    assert ours.tokens == theirs.tokens
    assert len(ours.token_logprobs) == len(ours.tokens) > 10
    assert ours.token_logprobs == pytest.approx(theirs.token_logprobs, abs=1e-3)
    for row, expected in zip(ours.top_logprobs, theirs.top_logprobs, strict=True):
        assert row == pytest.approx(expected, abs=1e-3)
    assert all(math.isfinite(x) and x <= 0 for x in ours.token_logprobs)


def test_chat_logprobs_name_the_chosen_tokens(with_drafts: OpenAI) -> None:
    answer = with_drafts.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2).choices[0]
    assert "".join(entry.token for entry in answer.logprobs.content).startswith(answer.message.content)
    assert all(entry.top_logprobs[0].token == entry.token for entry in answer.logprobs.content)


def test_a_stop_string_ends_the_answer_before_it(with_drafts: OpenAI, without: OpenAI, prompts: list[str]) -> None:
    text = complete(without, prompts[4]).choices[0].text
    stop = text[len(text) // 2 :][:3]
    answer, expected = (complete(openai, prompts[4], stop=[stop]).choices[0] for openai in (with_drafts, without))
    assert answer.finish_reason == "stop"
    assert answer.text == text[: text.index(stop)] == expected.text


def test_the_answer_ends_at_max_tokens_in_the_middle_of_a_draft(
    with_drafts: OpenAI, without: OpenAI, prompts: list[str]
) -> None:
    for limit in (1, 2, 3, 5):
        answer, expected = (complete(openai, prompts[5], max_tokens=limit) for openai in (with_drafts, without))
        assert answer.usage.completion_tokens == limit
        assert answer.choices[0].token_ids == expected.choices[0].token_ids
