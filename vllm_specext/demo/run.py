"""The demonstration: the same held-out prompts, one at a time through an OpenAI client, without and with drafts.

The plain server and one with drafts are up together and take turns on every prompt, so that a machine that is slow for
a while is slow for both. A row is ``identical`` when every prompt gets exactly the token ids of plain decoding. Tokens
per verification leave out prompts whose plain continuation is a loop, because a loop is easy to draft.
"""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from openai import OpenAI

from vllm_specext.demo.loops import is_loop
from vllm_specext.demo.server import GRIFFIN_CHAIN, TARGET, Server

CONFIGURATIONS: tuple[tuple[str, dict[str, Any]], ...] = (("griffin-chain", GRIFFIN_CHAIN),)
"""Rows after ``plain``: name and ``--speculative-config``."""
PROMPTS = Path(__file__).parent / "prompts.json"
MAX_TOKENS = 96
Tell = Callable[[str, str], None]
"""Called with a stage and, within it, what is being done right now."""


@dataclass(frozen=True)
class Row:
    """One configuration's line in the table and in ``demo.json``."""

    method: str
    identical: bool
    tokens_per_verification: float
    tokens_per_second: float
    speedup: float
    requests: int
    looping: int


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    seconds: float
    drafts: float
    accepted: float


def run(tell: Tell, target: Path = TARGET) -> list[Row]:
    """Measure plain decoding, and every configuration in turn with it."""
    prompts = [prompt["text"] for prompt in json.loads(PROMPTS.read_text(encoding="utf-8"))]
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="vllm-specext-demo-") as folder,
        Server(Path(folder) / "plain.log", target=target) as plain_server,
    ):
        plain_server.start(partial(tell, "plain: loading the server"))
        for name, speculative in CONFIGURATIONS:
            with Server(Path(folder) / f"{name}.log", speculative, target=target) as server:
                server.start(partial(tell, f"{name}: loading the server"))
                plain, answers = ask_in_turn(
                    (plain_server, server), prompts, partial(tell, f"plain and {name}: asking")
                )
            if not rows:
                rows.append(summarize("plain", plain, plain))
            rows.append(summarize(name, answers, plain))
    return rows


def ask_in_turn(
    servers: tuple[Server, Server], prompts: list[str], tell: Callable[[str], None]
) -> tuple[list[Answer], list[Answer]]:
    """Greedy answers of both servers, in order, after one of each that only warms it up."""
    clients = [OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) for server in servers]
    for client, server in zip(clients, servers, strict=True):
        ask(client, server, prompts[-1])
    answers: tuple[list[Answer], list[Answer]] = ([], [])
    for number, prompt in enumerate(prompts, start=1):
        tell(f"prompt {number} of {len(prompts)}")
        for client, server, received in zip(clients, servers, answers, strict=True):
            received.append(ask(client, server, prompt))
    return answers


def ask(client: OpenAI, server: Server, prompt: str) -> Answer:
    """One request on its own, so that what the counters gain in the meantime is its own too."""
    drafts, accepted = speculation_counters(server)
    begun = time.perf_counter()
    response = client.completions.create(
        model="bundled", prompt=prompt, max_tokens=MAX_TOKENS, temperature=0, extra_body={"return_token_ids": True}
    )
    seconds = time.perf_counter() - begun
    tokens: list[int] = response.choices[0].token_ids  # type: ignore[attr-defined]  # vLLM's addition to the protocol
    drafts_after, accepted_after = speculation_counters(server)
    return Answer(tokens, seconds, drafts_after - drafts, accepted_after - accepted)


def speculation_counters(server: Server) -> tuple[float, float]:
    """Drafts verified and drafted tokens accepted since the server's start."""
    drafts = server.metric("vllm:spec_decode_num_drafts_total")
    return drafts, server.metric("vllm:spec_decode_num_accepted_tokens_total")


def summarize(name: str, answers: list[Answer], plain: list[Answer]) -> Row:
    loops = [is_loop(answer.tokens) for answer in plain]
    told = [answer for answer, loop in zip(answers, loops, strict=True) if not loop]
    drafts = sum(answer.drafts for answer in told)
    speed = tokens_per_second(answers)
    return Row(
        method=name,
        identical=[answer.tokens for answer in answers] == [answer.tokens for answer in plain],
        tokens_per_verification=round(1 + sum(answer.accepted for answer in told) / drafts, 3) if drafts else 1.0,
        tokens_per_second=round(speed, 1),
        speedup=round(speed / tokens_per_second(plain), 2),
        requests=len(answers),
        looping=sum(loops),
    )


def tokens_per_second(answers: list[Answer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / sum(answer.seconds for answer in answers)


def write(rows: list[Row], path: Path) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
