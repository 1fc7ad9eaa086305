"""A busy server: when a request ends another takes its place, whose prompt is read in a step with what the others
decode. The more requests, the fewer steps decode alone; what decoding takes of the others, the choice has to tell from
what their prompts take.

An answer is as likely to end at one token as at any other; prompts are up to twice as long as their mean.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.simulated_drafts.drafters import METHODS, Method
from benchmarks.simulated_drafts.machines import CONTEXT, GPUS, HOST, TARGETS, Machine
from benchmarks.simulated_drafts.simulation import NOISE, Drafts, Simulation
from vllm_specext.tree.draft_choice import DraftChoice
from vllm_specext.tree.draft_size import NOTHING, DraftSize

LOADS, ANSWERS = (4, 16, 64, 256), (30, 100, 300)
"""Requests at a time, and the mean number of tokens of an answer."""

PROMPT = 500
"""Tokens of a prompt, as the mean."""

PIECES = 5e-4
"""Seconds that a step with a prompt takes longer, beside its rows: vLLM's graphs leave attention out then."""

STEPS, FIXED_STEPS, SETTLED = 6000, 1500, 1000
"""Steps of the choice, of each fixed number, and those of the choice that do not count."""

SHOWN = ("GRIFFIN chain", "GRIFFIN tree", "EAGLE-3 tree", "TLI", "SLRS")

Row = dict[str, Any]


@dataclass
class Server:
    machine: Machine
    method: Method
    requests: int
    answer: int
    chooser: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def run(self, steps: int, settled: int, size: DraftSize | None = None) -> tuple[float, float]:
        """Tokens per second after the ``settled`` steps, and the share of steps that decode alone, with drafts of a
        ``size``, or as is chosen."""
        drafts, choice = self.method.drafts, None if size is not None else self._choice()
        left = np.zeros(0, dtype=int)
        """Tokens that each running request has still to say."""
        verified = NOTHING
        tokens, seconds, alone = 0, 0.0, 0
        for step in range(steps):
            new = self.requests - len(left)
            asked = size if choice is None else choice.size(self.requests)
            assert asked is not None
            prompts = int(self.chooser.integers(1, 2 * PROMPT, new).sum())
            took = self._seconds(len(left), verified, asked, prompts)
            accepted = self._accepted(drafts, verified, step, len(left))
            emitted = np.minimum(accepted + 1, left)
            left = np.concatenate((left - emitted, self.chooser.geometric(1 / self.answer, new)))
            left = left[left > 0]
            if step >= settled:
                tokens, seconds, alone = tokens + int(emitted.sum()) + new, seconds + took, alone + (not new)
            if choice is not None:
                noisy = took * self.chooser.uniform(1 - NOISE, 1 + NOISE)
                choice.note(self.requests, asked, Counter(accepted.tolist()), noisy if len(left) else None, prompts)
            verified = asked
        return tokens / seconds, alone / (steps - settled)

    def _choice(self) -> DraftChoice:
        simulation = self.simulation()
        return DraftChoice(simulation.most(), self.method.drafts.sizes(), 63, simulation.slope)

    def simulation(self) -> Simulation:
        return Simulation(self.method.drafts, self.method.cost(self.machine), lambda step: self.requests)

    def _seconds(self, decoding: int, verified: DraftSize, asked: DraftSize, prompts: int) -> float:
        target = self.machine.target
        rows, keys = decoding * (1 + verified.nodes) + prompts, self.requests * CONTEXT * target.kv_bytes
        drafting = self.method.drafting(self.machine, self.requests, asked)
        verifying = self.machine.seconds(target.weights, target.layers, rows, keys)
        return HOST + verifying + drafting + PIECES * bool(prompts)

    def _accepted(self, drafts: Drafts, verified: DraftSize, step: int, requests: int) -> np.ndarray:
        """How many tokens each of the ``requests`` accepts."""
        chances = np.array(drafts.chances(verified, step)) if verified.nodes else np.zeros(0)
        hits = self.chooser.random((requests, len(chances))) < chances
        return hits.cumprod(axis=1).sum(axis=1)


def measured() -> list[Row]:
    """On an H100 with the 8B target."""
    machine = Machine(next(gpu for gpu in GPUS if gpu.name == "H100"), TARGETS[0])
    rows = []
    for method in METHODS:
        for answer in ANSWERS if method.name in SHOWN else ():
            for requests in LOADS:
                server = Server(machine, method, requests, answer)
                sizes = server.simulation().sizes(requests)
                fixed = {size: server.run(FIXED_STEPS, 100, size)[0] for size in sizes}
                best = max(fixed, key=lambda size: fixed[size])
                speed, alone = server.run(STEPS, SETTLED)
                rows.append(
                    {
                        "method": method.name,
                        "answer": answer,
                        "requests": requests,
                        "decode_alone": alone,
                        "best_fixed": best.nodes,
                        "best_depth": best.levels,
                        "best_to_none": fixed[best] / fixed[NOTHING],
                        "chosen_to_best": speed / fixed[best],
                        "chosen_to_none": speed / fixed[NOTHING],
                    }
                )
    return rows


def table(rows: list[Row]) -> str:
    """A row for each method and length of answers, with a column for each load."""
    lines = [
        f"| method | tokens of an answer | {' | '.join(f'{load} requests' for load in LOADS)} |",
        "| --- | --- |" + " --- |" * len(LOADS),
    ]
    for method, answer in dict.fromkeys((row["method"], row["answer"]) for row in rows):
        own = [row for row in rows if (row["method"], row["answer"]) == (method, answer)]
        cells = (f"{row['chosen_to_none']:.2f} of {row['best_to_none']:.2f} ({row['decode_alone']:.0%})" for row in own)
        lines.append(f"| {method} | {answer} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
