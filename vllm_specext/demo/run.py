"""The demonstration: the same held-out prompts, one at a time through an OpenAI client, without and with drafts.

The servers of plain decoding (``measure/plain.py``) and up to five with drafts are up together and take turns, so that
a machine that is slow for a while is slow for all of them. Nothing is started or stopped while they are asked. A row is
``identical`` when every prompt gets exactly the token ids of plain decoding. Tokens per verification and what else is
said about drafts leave out prompts whose plain continuation is a loop, because a loop is easy to draft.
"""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from openai import OpenAI

from vllm_specext.measure.bundled import CONFIGURATIONS, DFLASH, MAX_TOKENS, TARGET, Configurations, bundled_prompts
from vllm_specext.measure.loops import is_loop
from vllm_specext.measure.plain import PLAIN, STOCK, STOCK_ENVIRONMENT, has_stock_row
from vllm_specext.measure.server import SETTLING_SECONDS, Server, room, speculation, start_together
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import in_turns

SHORT: Configurations = CONFIGURATIONS[:3]
"""GRIFFIN's chain, and the trees of GRIFFIN and EAGLE-3."""
LONG: Configurations = (*SHORT, ("dflash", DFLASH), *CONFIGURATIONS[len(SHORT) :])
"""Every method, and vLLM's own chains of the DFlash drafter before our trees of it."""
DRAFTING_AT_ONCE = 5
"""Servers with drafts beside those of plain decoding, where memory has room."""
PROMPTS_PER_TURN, PASSES = 8, 2
"""Every prompt is asked ``PASSES`` times."""
Tell = Callable[[str, str], None]
"""A function that hears the stage of the run and what is being done in it right now."""


@dataclass(frozen=True)
class Row:
    """One configuration's line in the table and in ``demo.json``."""

    method: str
    identical: bool
    tokens_per_verification: float
    nodes_per_verification: float
    accepted_per_depth: list[float]
    """Share of the verifications that accepted a drafted token at depth 1, 2, ...; their sum is the mean accepted."""
    tokens_per_second: float
    speedup: float
    """Over the first row: plain decoding, by vLLM as it is where that is another thing."""
    speedup_error: float
    """Standard error of the speed-up, from how much it differs between the turns."""
    requests: int
    looping: int


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    seconds: float
    speculation: Speculation = field(default_factory=Speculation)


def run(tell: Tell, configurations: Configurations = SHORT, target: Path = TARGET) -> list[Row]:
    """Measure plain decoding, and every configuration in turns with it."""
    prompts = [prompt["text"] for prompt in bundled_prompts()]
    environments = ({STOCK: STOCK_ENVIRONMENT} if has_stock_row() else {}) | {PLAIN: {}}
    beside = max(1, min(DRAFTING_AT_ONCE, room() - len(environments)))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="vllm-specext-demo-") as folder, ExitStack() as until_the_end:
        plain = {
            name: until_the_end.enter_context(
                Server(Path(folder) / f"{name}.log", target=target, environment=environment)
            )
            for name, environment in environments.items()
        }
        starting = dict(plain)
        for first in range(0, len(configurations), beside):
            with ExitStack() as until_asked:
                for name, speculative in configurations[first : first + beside]:
                    server = Server(Path(folder) / f"{name}.log", speculative, target=target)
                    starting[name] = until_asked.enter_context(server)
                start_together(starting, partial(tell, "starting servers"))
                answers = ask_in_turn(plain | starting, prompts, partial(tell, "asking"))
            baseline = answers[next(iter(plain))]
            rows += [summarize(name, answers[name], answers[PLAIN], baseline) for name in starting]
            starting = {}
    return rows


def ask_in_turn(
    servers: Mapping[str, Server], prompts: list[str], tell: Callable[[str], None]
) -> dict[str, list[Answer]]:
    """Ask all servers for greedy answers to ``prompts``, after one answer of each that only warms it up. The answers
    are in the order of asking, which is the same for every server."""
    clients = {
        name: OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) for name, server in servers.items()
    }
    for name, server in servers.items():
        ask(clients[name], server, prompts[-1])

    def ask_all(name: str, places: range) -> list[Answer]:
        found = []
        for place in places:
            tell(f"prompt {place + 1} of {len(prompts)}, {name}")
            found.append(ask(clients[name], servers[name], prompts[place]))
        return found

    # Prompts of one kind follow one another, and each turn asks some of every kind, so that turns can be compared.
    a_pass = len(prompts) // PROMPTS_PER_TURN
    rounds = [range(first, len(prompts), a_pass) for first in range(a_pass)] * PASSES
    turns = in_turns(rounds, {name: partial(ask_all, name) for name in servers}, settle=SETTLING_SECONDS)
    return {name: [answer for turn in own for answer in turn] for name, own in turns.items()}


def ask(client: OpenAI, server: Server, prompt: str) -> Answer:
    """Send one request on its own, so that all that the counters gain in the meantime belongs to it."""
    before = speculation(server)
    begun = time.perf_counter()
    response = client.completions.create(
        model="bundled", prompt=prompt, max_tokens=MAX_TOKENS, temperature=0, extra_body={"return_token_ids": True}
    )
    seconds = time.perf_counter() - begun
    tokens: list[int] = response.choices[0].token_ids  # type: ignore[attr-defined]  # vLLM's addition to the protocol
    return Answer(tokens, seconds, speculation(server) - before)


def summarize(name: str, answers: list[Answer], plain: list[Answer], baseline: list[Answer]) -> Row:
    """A row whose tokens are compared with those of ``plain``, and its speed with that of ``baseline``."""
    loops = [is_loop(answer.tokens) for answer in plain]
    told = sum((answer.speculation for answer, loop in zip(answers, loops, strict=True) if not loop), Speculation())
    speed = tokens_per_second(answers)
    return Row(
        method=name,
        identical=[answer.tokens for answer in answers] == [answer.tokens for answer in plain],
        tokens_per_verification=told.acceptance_length,
        nodes_per_verification=told.per_verification(told.nodes),
        accepted_per_depth=[told.per_verification(count) for count in told.accepted],
        tokens_per_second=round(speed, 1),
        speedup=round(speed / tokens_per_second(baseline), 2),
        speedup_error=round(standard_error(speedups(answers, baseline)), 3),
        requests=len(answers) // PASSES,
        looping=sum(loops) // PASSES,
    )


def speedups(answers: list[Answer], baseline: list[Answer]) -> list[float]:
    """The speed-up in each turn."""
    turns = [slice(first, first + PROMPTS_PER_TURN) for first in range(0, len(answers), PROMPTS_PER_TURN)]
    return [tokens_per_second(answers[turn]) / tokens_per_second(baseline[turn]) for turn in turns]


def standard_error(figures: list[float]) -> float:
    """Of the mean of ``figures``; 0 for a single one, which says nothing of it."""
    return statistics.stdev(figures) / math.sqrt(len(figures)) if len(figures) > 1 else 0.0


def tokens_per_second(answers: list[Answer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / sum(answer.seconds for answer in answers)


def write(rows: list[Row], path: Path) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
