"""What SWIFT's search finds, what it is worth and what it costs, on the bundled target of 12 layers.

    python -m benchmarks.swift_search --output benchmarks/results/cpu [--rounds 2]

Two engines of their own process each answer the same stream of requests, one at a time and greedily: code first, prose
afterwards. Both search; in one a search that has stopped begins anew when acceptance falls, in the other it does not.
Then the stream's prompts are asked again in the first engine with the set that the search began with, with the one it
found, and without drafts, in turns, with no search beside it. Matchness is measured as the search does it, on every
window of these answers. The time of steps is split into the search's own and that of its evaluation passes.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.own_process import bundled_engine, in_own_process
from vllm_specext.measure.bundled import SWIFT, bundled_prompts
from vllm_specext.measure.loops import is_loop
from vllm_specext.measure.turns import Turn, in_turns, speedups
from vllm_specext.methods.swift.learning import Learner
from vllm_specext.methods.swift.search.acceptance import AcceptanceWatch, DraftOutcome
from vllm_specext.methods.swift.search.search import Kind, ProposedSet, Search
from vllm_specext.methods.swift.search.skip_set import SkipSet

TOKENS = 128
SMOOTHED_OVER = 100
"""Verifications that a point of the picture is the share of."""


@dataclass
class Probe:
    """A stand-in for the search with one set, whose drafts are counted and whose matchness is measured if asked for."""

    active: SkipSet
    measures: bool
    scores: list[float] = field(default_factory=list)
    accepted: int = 0
    depth: int = 0
    right: int = 0
    reached: int = 0
    verifications: int = 0

    def propose(self) -> ProposedSet | None:
        return ProposedSet(len(self.scores), self.active, Kind.START) if self.measures else None

    def needs_incumbent(self, proposed: ProposedSet, score: float) -> bool:
        return False

    def settle(self, proposed: ProposedSet, score: float, incumbent_score: float | None = None) -> bool:
        self.scores.append(score)
        return False

    def note(self, outcome: DraftOutcome) -> bool:
        self.accepted += outcome.accepted
        self.depth += outcome.depth
        self.right += outcome.right
        self.reached += outcome.reached
        self.verifications += 1
        return False


@dataclass
class Step:
    """Seconds of an engine step."""

    whole: float = 0.0
    learning: float = 0.0
    """Seconds after a draft: statistics and the search, its passes included."""
    passes: float = 0.0
    """Seconds of the target's passes for evaluations."""
    suggestion: bool = False
    """Whether a Bayesian suggestion was computed beside it."""


class SwiftEngine:
    """An engine with SWIFT, whose steps are timed by part."""

    def __init__(self) -> None:
        self.engine = bundled_engine(SWIFT, counts=False)
        self.speculator = self.engine.speculator
        self.learner: Learner = self.speculator.learner
        self.search = self.learner.search
        self.steps: list[Step] = []
        self._time(self.engine.engine, "step", "whole")
        self._time(self.speculator, "_learn", "learning")
        self._time(self.learner, "matchness", "passes")

    def _time(self, owner: Any, name: str, part: str) -> None:
        stock: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if part == "whole":
                self.steps.append(Step(suggestion=self._suggests()))
            begun = time.perf_counter()
            try:
                return stock(*args, **kwargs)
            finally:
                step = self.steps[-1]
                setattr(step, part, getattr(step, part) + time.perf_counter() - begun)

        setattr(owner, name, timed)

    def _suggests(self) -> bool:
        suggester: Any = self.search._suggester
        return bool(suggester._local._is_busy)

    def ask(self, texts: Sequence[str], nodes: int | None = None) -> Turn:
        """Ask one text at a time."""
        prompts = [self.engine.tokenizer.encode(text) for text in texts]
        return self.engine.turn(prompts, TOKENS, 1, nodes, ignore_eos=True)

    def ask_probed(self, texts: Sequence[str], probe: Probe, drafts: bool = True) -> Turn:
        """Ask with ``probe`` in the search's place."""
        self.learner.search = probe  # type: ignore[assignment]
        return self.ask(texts, SWIFT["num_speculative_tokens"] if drafts else 0)


def stream(restarts: bool, rounds: int) -> tuple[SwiftEngine, dict[str, Any], dict[str, list[str]]]:
    """An engine after the stream, what was seen, and the prompts by kind."""
    with restarting(restarts):
        engine = SwiftEngine()
        found = bundled_prompts()
        prompts = {kind: [one["text"] for one in found if one["kind"] == kind] for kind in ("code", "prose")}
        # Loops are easy to draft, whatever is skipped.
        prompts = {
            kind: [t for t, ids in zip(texts, engine.ask(texts).tokens, strict=True) if not is_loop(ids)]
            for kind, texts in prompts.items()
        }
        engine.learner.search = engine.search = fresh(engine.search)
        verifications: list[DraftOutcome] = []
        stock = engine.search.note

        def note(outcome: DraftOutcome) -> bool:
            verifications.append(outcome)
            return stock(outcome)

        engine.search.note = note
        engine.steps.clear()
        phases = []
        for kind, texts in prompts.items():
            first, begun = len(verifications), time.perf_counter()
            for _ in range(rounds):
                engine.ask(texts)
            own = verifications[first:]
            phases.append(
                {
                    "kind": kind,
                    "first_verification": first,
                    "acceptance": acceptance(own),
                    "acceptance_of_last_half": acceptance(own[len(own) // 2 :]),
                    "right_in_chains": right_share(own),
                    "right_in_chains_of_last_half": right_share(own[len(own) // 2 :]),
                    "tokens_per_verification": round(1 + statistics.fmean(one.accepted for one in own), 3),
                    "tokens_per_second": rounds * len(texts) * TOKENS / (time.perf_counter() - begun),
                    "set": str(engine.search.active),
                    "restarts": engine.search.restarts,
                }
            )
    history = [[s.number, s.kind.value, s.score, s.best, s.adopted] for s in engine.search.history]
    seen = {"phases": phases, "history": history, "verifications": verifications, "cost": cost(engine.steps)}
    return engine, seen, prompts


def fresh(search: Search) -> Search:
    """A search as it was before the prompts were tried."""
    return Search(SkipSet.uniform(search.active.layers), search._options, search._suggester)


@contextmanager
def restarting(restarts: bool) -> Iterator[None]:
    stock = AcceptanceWatch.has_fallen
    if not restarts:
        AcceptanceWatch.has_fallen = property(lambda self: False)  # type: ignore[method-assign, assignment]
    yield
    AcceptanceWatch.has_fallen = stock  # type: ignore[method-assign]


def acceptance(verifications: Sequence[DraftOutcome]) -> float:
    """The share of the drafted levels that were accepted."""
    return round(sum(one.accepted for one in verifications) / sum(one.depth for one in verifications), 3)


def right_share(verifications: Sequence[DraftOutcome]) -> float:
    """The share of right tokens among those of the chains that verification reached; restarts depend on it."""
    return round(sum(one.right for one in verifications) / sum(one.reached for one in verifications), 3)


def cost(steps: Sequence[Step]) -> dict[str, Any]:
    """The search's share of the time, and what it adds to a step beside its passes."""
    searching = [step for step in steps if step.passes]
    median = statistics.median(step.whole - step.learning for step in steps if step.learning)
    # In milliseconds a step's draft is as long as the drafter was sure, so the search's addition is what is compared.
    own = sorted(step.learning - step.passes for step in searching)
    return {
        "median_step_without_search_ms": 1000 * median,
        "steps_with_evaluation": len(searching),
        "median_evaluation_ms": 1000 * statistics.median(step.passes for step in searching),
        "search_beside_evaluation_ms": {
            "median": 1000 * statistics.median(own),
            "p99": 1000 * own[int(0.99 * len(own))],
            "largest": 1000 * own[-1],
        },
        "largest_step_beside_evaluation_relative_to_median": (median + own[-1]) / median,
        "median_step_while_a_suggestion_is_computed_relative": _relative(searching),
        "share_of_time_evaluation": sum(step.passes for step in steps) / sum(step.whole for step in steps),
        "share_of_time_search_beside_evaluation": sum(step.learning - step.passes for step in steps)
        / sum(step.whole for step in steps),
    }


def _relative(steps: Sequence[Step]) -> float | None:
    beside, alone = ([s.whole - s.passes for s in steps if s.suggestion == busy] for busy in (True, False))
    return statistics.median(beside) / statistics.median(alone) if beside and alone else None


def compare(engine: SwiftEngine, prompts: dict[str, list[str]], rounds: int) -> list[dict[str, Any]]:
    """The set that the search begins with and the one it found, against no drafts, in turns."""
    texts = [text for kind in prompts.values() for text in kind]
    found = engine.search.active
    sets = {"at first (uniform)": SkipSet.uniform(found.layers), "found": found}
    measured = {name: Probe(skipped, measures=True) for name, skipped in sets.items()}
    for probe in measured.values():
        engine.ask_probed(texts, probe)

    def ask(skipped: SkipSet | None, _: int) -> Turn:
        return engine.ask_probed(texts, Probe(skipped or found, measures=False), drafts=skipped is not None)

    plain = "without drafts"
    turns = in_turns(range(rounds), {name: partial(ask, skipped) for name, skipped in ({plain: None} | sets).items()})
    rows = []
    for name, probe in measured.items():
        tokens = 1 + probe.accepted / probe.verifications
        share = probe.accepted / probe.depth
        speedup = speedups(turns[name], turns[plain])
        runs = 1 - len(probe.active) / (2 * found.layers)
        rows.append(
            {
                "set": name,
                "skipped": str(probe.active),
                "sub_layers_run": round(runs, 3),
                "matchness": round(statistics.fmean(probe.scores), 3),
                "acceptance": round(share, 3),
                "right_in_chains": round(probe.right / probe.reached, 3),
                "tokens_per_verification": round(tokens, 3),
                # The paper's equation 6, with the share of the sub-layers that a draft runs as its cost.
                "expected_speedup": round(tokens * share / ((tokens - 1) * runs + share), 3),
                "measured_speedup": speedup.median,
                "lowest": speedup.lowest,
                "highest": speedup.highest,
            }
        )
    return rows


def one(request: dict[str, Any]) -> dict[str, Any]:
    engine, seen, prompts = stream(request["restarts"], request["rounds"])
    return seen | {"sets": compare(engine, prompts, request["rounds"])} if request["restarts"] else seen


def plot(results: dict[str, Any], path: Path) -> None:
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(8, 7), layout="constrained")
    for name, color in (("with restarts", "tab:blue"), ("without", "tab:orange")):
        seen = results[name]
        numbers, _, _, best, _ = zip(*seen["history"], strict=True)
        upper.step(numbers, best, where="post", color=color, label=name)
        own = [DraftOutcome(*one) for one in seen["verifications"]]  # they come as JSON
        ends = range(SMOOTHED_OVER, len(own), SMOOTHED_OVER // 4)
        lower.plot(ends, [right_share(own[end - SMOOTHED_OVER : end]) for end in ends], color=color, label=name)
    lower.axvline(results["with restarts"]["phases"][1]["first_verification"], color="grey", linewidth=0.8)
    upper.set(xlabel="step of the search", ylabel="matchness of the active set")
    lower.set(xlabel="verification (code, then prose from the line on)", ylabel="share of right tokens in chains")
    upper.legend(title="search")
    figure.savefig(path, dpi=150)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="the set at the start of the search and the one found, no search beside it")
    columns = list(rows[0])
    for column in columns:
        shown.add_column(column.replace("_", " "), justify="left" if column in ("set", "skipped") else "right")
    for row in rows:
        shown.add_row(*(str(row[column]) for column in columns))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for swift_search.json and .png")
    parser.add_argument("--rounds", type=int, default=2, help="how often each half of the stream is asked")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one)))
        return
    ways = {"with restarts": True, "without": False}
    results = {
        name: in_own_process("benchmarks.swift_search", name, {"restarts": restarts, "rounds": args.rounds})
        for name, restarts in track(ways.items(), description="searching")
    }
    console = Console()
    console.print(table(results["with restarts"]["sets"]))
    console.print_json(data={name: {key: seen[key] for key in ("phases", "cost")} for name, seen in results.items()})
    if args.output is None:
        return
    args.output.mkdir(parents=True, exist_ok=True)
    plot(results, args.output / "swift_search.png")
    for seen in results.values():  # the picture has them
        del seen["verifications"]
    (args.output / "swift_search.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
