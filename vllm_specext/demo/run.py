"""The demonstration: the same held-out prompts, one at a time through an OpenAI client, without and with drafts.

The plain server and up to three with drafts are up together and take turns, so that a machine that is slow for a while
is slow for all of them. Nothing is started or stopped while they are asked. A row is ``identical`` when every prompt
gets exactly the token ids of plain decoding. Tokens per verification and what else is said about drafts leave out
prompts whose plain continuation is a loop, because a loop is easy to draft.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from openai import OpenAI

from vllm_specext.demo.loops import is_loop
from vllm_specext.demo.server import (
    EAGLE3_TREE,
    GRIFFIN_CHAIN,
    GRIFFIN_TREE,
    MOA_TREE,
    SLEM,
    SLRS,
    SWIFT,
    TARGET,
    TLI,
    Server,
    room,
    start_together,
)

Configurations = Sequence[tuple[str, dict[str, Any]]]
"""Rows after ``plain``: name and ``--speculative-config``."""
SHORT: Configurations = (
    ("griffin-chain", GRIFFIN_CHAIN),
    ("griffin-tree", GRIFFIN_TREE),
    ("eagle3-tree", EAGLE3_TREE),
)
CONFIGURATIONS: Configurations = (
    *SHORT,
    ("moa-tree", MOA_TREE),
    ("swift", SWIFT),
    ("slem", SLEM),
    ("tli", TLI),
    ("slrs", SLRS),
)
SERVERS_AT_ONCE = 4
"""Plain decoding's and three more, where memory has room."""
PROMPTS = Path(__file__).parent / "prompts.json"
MAX_TOKENS = 96
PROMPTS_PER_TURN = 4
SETTLING_SECONDS = 1.2
"""vLLM's engine process keeps a core busy for a second after its last step, in case another request comes."""
Tell = Callable[[str, str], None]
"""Called with a stage and, within it, what is being done right now."""


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
    requests: int
    looping: int


@dataclass(frozen=True)
class Speculation:
    """Verifications, nodes verified and tokens accepted at depth 1, 2, ...; all 0 without drafts."""

    verifications: float = 0
    nodes: float = 0
    accepted: tuple[float, ...] = ()

    def __add__(self, other: "Speculation") -> "Speculation":
        accepted = map(sum, zip_longest(self.accepted, other.accepted, fillvalue=0))
        return Speculation(self.verifications + other.verifications, self.nodes + other.nodes, tuple(accepted))

    def __sub__(self, other: "Speculation") -> "Speculation":
        return self + Speculation(-other.verifications, -other.nodes, tuple(-count for count in other.accepted))

    def per_verification(self, count: float) -> float:
        return round(count / self.verifications, 3) if self.verifications else 0.0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per verification: those accepted and the target's own."""
        return round(1 + self.per_verification(sum(self.accepted)), 3)


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    seconds: float
    speculation: Speculation = Speculation()


def run(tell: Tell, configurations: Configurations = SHORT, target: Path = TARGET) -> list[Row]:
    """Measure plain decoding, and every configuration in turn with it."""
    prompts = [prompt["text"] for prompt in json.loads(PROMPTS.read_text(encoding="utf-8"))]
    beside = max(1, min(SERVERS_AT_ONCE, room()) - 1)
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="vllm-specext-demo-") as folder,
        Server(Path(folder) / "plain.log", target=target) as plain,
    ):
        starting = {"plain": plain}
        for first in range(0, len(configurations), beside):
            with ExitStack() as until_asked:
                for name, speculative in configurations[first : first + beside]:
                    server = Server(Path(folder) / f"{name}.log", speculative, target=target)
                    starting[name] = until_asked.enter_context(server)
                start_together(starting, partial(tell, "starting servers"))
                answers = ask_in_turn({"plain": plain} | starting, prompts, partial(tell, "asking"))
            rows += [summarize(name, answers[name], answers["plain"]) for name in starting]
            starting = {}
    return rows


def ask_in_turn(
    servers: Mapping[str, Server], prompts: list[str], tell: Callable[[str], None]
) -> dict[str, list[Answer]]:
    """Greedy answers of all servers, in order, after one of each that only warms it up."""
    clients = {
        name: OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) for name, server in servers.items()
    }
    for name, server in servers.items():
        ask(clients[name], server, prompts[-1])
    answers: dict[str, list[Answer]] = {name: [] for name in servers}
    for first in range(0, len(prompts), PROMPTS_PER_TURN):
        turn = prompts[first : first + PROMPTS_PER_TURN]
        for name, server in servers.items():
            time.sleep(SETTLING_SECONDS)
            for number, prompt in enumerate(turn, start=first + 1):
                tell(f"prompt {number} of {len(prompts)}, {name}")
                answers[name].append(ask(clients[name], server, prompt))
    return answers


def ask(client: OpenAI, server: Server, prompt: str) -> Answer:
    """One request on its own, so that what the counters gain in the meantime is its own too."""
    before = speculation(server)
    begun = time.perf_counter()
    response = client.completions.create(
        model="bundled", prompt=prompt, max_tokens=MAX_TOKENS, temperature=0, extra_body={"return_token_ids": True}
    )
    seconds = time.perf_counter() - begun
    tokens: list[int] = response.choices[0].token_ids  # type: ignore[attr-defined]  # vLLM's addition to the protocol
    return Answer(tokens, seconds, speculation(server) - before)


def speculation(server: Server) -> Speculation:
    """What the server has counted since its start."""
    return counted(server.samples())


def counted(samples: Iterable[Any]) -> Speculation:
    """What is in Prometheus' samples or in ``LLM.get_metrics()``."""
    found = Speculation()
    depths: dict[int, float] = {}
    for sample in samples:
        name = sample.name.removesuffix("_total")
        if name == "vllm:specext_num_verifications":
            found += Speculation(sample.value, int(sample.labels["nodes"]) * sample.value)
        elif name == "vllm:specext_num_accepted_tokens_per_depth":
            depths[int(sample.labels["depth"])] = sample.value
    return replace(found, accepted=tuple(depths[depth] for depth in sorted(depths)))


def summarize(name: str, answers: list[Answer], plain: list[Answer]) -> Row:
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
        speedup=round(speed / tokens_per_second(plain), 2),
        requests=len(answers),
        looping=sum(loops),
    )


def tokens_per_second(answers: list[Answer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / sum(answer.seconds for answer in answers)


def write(rows: list[Row], path: Path) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
