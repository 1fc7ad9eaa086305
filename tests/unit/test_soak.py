import asyncio
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from benchmarks.soak.__main__ import METHODS
from benchmarks.soak.clients import Load, pieces
from benchmarks.soak.clients import connect as connect_to
from benchmarks.soak.verdict import problems, rows
from benchmarks.soak.watch import Sample, memory_by_quarter, speed_by_quarter
from benchmarks.soak.workload import FAULTS, KINDS, requests, workload
from vllm_specext.bench.configurations import Configuration

DEATH: dict[str, Any] = {
    "killed": "Worker",
    "streams": 6,
    "finished": 0,
    "failed": 6,
    "hanging": 0,
    "wrong": 0,
    "next_request": "status 500",
    "server_ended_with_status": 0,
    "seconds_until_clients_knew": 0.1,
    "seconds_until_server_ended": 1.0,
}
SOUND: dict[str, Any] = {
    "method": "griffin-tree",
    "minutes": 15,
    "clients": 12,
    "requests": Counter({"answered whole": 7, "answered as a stream": 2}),
    "refused": {"malformed JSON": 3},
    "compared_tokens": 400,
    "differing": [],
    "unexpected": [],
    "preemptions": 4,
    "highest_cache_usage": 1.0,
    "tokens_per_verification": 2.5,
    "memory_at_start": 2000.0,
    "memory_at_end": 2100.0,
    "memory_by_quarter": [2050.0, 2090.0, 2095.0, 2100.0],
    "memory_growth": 0.005,
    "afterwards": {"running": 0, "waiting": 0, "cache_usage": 0.0},
    "deaths": [DEATH],
}


def test_nothing_is_wrong_with_sound_figures() -> None:
    assert problems(SOUND) == []
    assert ("answers compared with plain decoding", "9") in rows(SOUND)
    assert ("answers compared with plain decoding", "5") in rows(SOUND | {"uncompared": 4})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"differing": [3, 3]}, "2 answers differ"),
        ({"unexpected": ["unknown model: status 200"]}, "status 200"),
        ({"compared_tokens": 0}, "no answer was compared"),
        ({"afterwards": {"running": 1, "waiting": 0, "cache_usage": 0.0}}, "does not come to rest"),
        ({"afterwards": {"running": 0, "waiting": 0, "cache_usage": 0.02}}, "does not come to rest"),
        ({"memory_growth": 0.2}, "memory grew by 20.0%"),
        ({"deaths": [DEATH | {"hanging": 2}]}, "2 of 6 clients wait for ever"),
        ({"deaths": [DEATH | {"wrong": 1}]}, "1 clients got other tokens"),
        ({"deaths": [DEATH | {"failed": 0}]}, "no client noticed"),
        ({"deaths": [DEATH | {"next_request": "answered"}]}, "the next request: answered"),
        ({"deaths": [DEATH | {"server_ended_with_status": None}]}, "the server still runs"),
    ],
)
def test_every_fault_is_said(change: dict[str, Any], sentence: str) -> None:
    (found,) = problems(SOUND | change)
    assert sentence in found


def test_memory_is_not_judged_while_a_server_warms_up() -> None:
    assert problems(SOUND | {"memory_growth": 0.2, "minutes": 1}) == []


def test_memory_is_the_median_of_each_quarter() -> None:
    samples = [
        Sample(i, mebibytes, {}, 0, 0, 0, 0, 0) for i, mebibytes in enumerate([9, 1, 1, 1, 2, 9, 2, 2, 3, 3, 3, 9])
    ]
    assert memory_by_quarter(samples) == [1, 2, 2, 3]


def test_speed_is_what_was_generated_in_each_quarter() -> None:
    samples = [Sample(2.0 * i, 1, {}, 0, 0, 0, 0, tokens) for i, tokens in enumerate([0, 10, 20, 60, 60, 60, 70, 72])]
    assert speed_by_quarter(samples) == [5.0, 20.0, 0.0, 1.0]
    assert speed_by_quarter(samples[:1]) == [0.0, 0.0, 0.0, 0.0]


def test_the_requests_are_the_same_every_time_and_of_every_kind() -> None:
    made = requests(24)
    assert made == requests(24)
    assert all(kind.items() <= request.items() for kind, request in zip(KINDS, made, strict=False))
    assert len({str(request["prompt"]) for request in made}) > 15


class Answers(BaseHTTPRequestHandler):
    """Answers every request with the same tokens, and every fault as if it were a request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b'"stream":true' in body:
            events = [b'data: {"choices": [{"token_ids": [5]}]}', b'data: {"choices": [{"token_ids": [6, 7]}]}']
            answer = b"\n\n".join([*events, b"data: [DONE]", b""])
        else:
            answer = b'{"choices": [{"token_ids": [5, 6, 7]}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(("known", "different"), [([5, 6, 7], False), ([5, 6, 8], True)])
def test_the_load_notices_other_tokens_and_faults_that_are_answered(
    url: str, known: list[int], different: bool
) -> None:
    load = Load(url, workload(2, drawn=False), [known, known])
    asyncio.run(load.run(4, 1.5))
    outcome = load.outcome
    assert outcome.counts["answered whole"] > 3
    assert outcome.counts["answered as a stream"] > 3
    assert outcome.counts["disconnected within the message"] > 0
    assert bool(outcome.differing) == different
    assert not outcome.refused
    assert outcome.unexpected
    assert all("status 200 instead of" in sentence for sentence in outcome.unexpected)
    assert {sentence.partition(":")[0] for sentence in outcome.unexpected} <= {fault.name for fault in FAULTS}


@pytest.mark.parametrize("drawn", [True, False])
def test_where_drafts_are_drawn_only_greedy_answers_are_compared(url: str, drawn: bool) -> None:
    asked = workload(2, drawn=drawn)
    assert [request["temperature"] for request in asked.requests] == [0, 1]
    load = Load(url, asked, [[5, 6, 7], [5, 6, 8]])
    asyncio.run(load.run(4, 1.5))
    assert bool(load.outcome.differing) != drawn
    assert bool(load.outcome.uncompared) == drawn
    assert load.outcome.tokens > 0


def test_of_all_methods_slrs_alone_draws_its_drafts() -> None:
    assert [name for name, own in METHODS.items() if not Configuration(name, own).keeps_samples] == ["slrs"]


def test_drawn_drafts_are_asked_for_nothing_that_vllm_refuses_with_them() -> None:
    made, drawn = workload(24, drawn=False), workload(24, drawn=True)
    assert made.requests == requests(24)
    assert all(made.compared)
    assert made.faults == FAULTS
    assert not any({"min_p", "logit_bias"} & request.keys() for request in drawn.requests)
    names = [fault.name for fault in drawn.faults[len(FAULTS) :]]
    assert names == ["temperature, min_p with drawn drafts", "temperature, logit_bias with drawn drafts"]


def test_a_stream_gives_its_tokens_piece_by_piece(url: str) -> None:
    async def read() -> list[list[int]]:
        async with connect_to(url) as client:
            return [piece async for piece in pieces(client, requests(1)[0])]

    assert asyncio.run(read()) == [[5], [6, 7]]
