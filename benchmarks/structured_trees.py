"""What trees bring to requests with structured outputs: tokens per verification.

    python -m benchmarks.structured_trees --output benchmarks/results/cpu

The demonstration's held-out prompts, one at a time and greedy, each with three structures: lines of printable
characters, a docstring, and a JSON object with a name and a text, in one line. The bundled target writes Python; it is
at home with the first, and has never seen the last. GRIFFIN and EAGLE-3 draft chains of 6 tokens, and trees of 24 and
59. Prompts whose plain continuation is a loop do not count. Nothing is timed. Every answer must be plain decoding's,
else nothing is written. Writes ``structured_trees.json``.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.held_out_rows import show
from benchmarks.structured_sampling import Structured
from benchmarks.tokens_per_verification import PUBLISHED, check_same, forced, load_engine, loops, published
from vllm_specext.bench.configurations import Configuration
from vllm_specext.measure.bundled import MAX_TOKENS
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Turn

STRUCTURES = {
    "lines": Structured(structure=r"([ -~]{0,80}\n){1,100}"),
    "a docstring": Structured(structure=r'"""[A-Z][^"\\]{40,600}"""'),
    "an object": Structured(structure=r'\{"name": "[a-z_]{3,20}", "text": "[A-Z][^"\\\n]{40,300}\."\}'),
}
"""Regular expressions. Of JSON with white space wherever it may be, this target writes nothing else."""
DRAFTERS = {"GRIFFIN": "griffin", "EAGLE-3": "eagle3-tree"}
SIZES = (24, 59)


def answers(engine: EngineProcess, prompts: Sequence[list[int]], structure: Structured, doing: str) -> list[Turn]:
    return [engine.turn([ids], MAX_TOKENS, 1, sampling=structure) for ids in track(prompts, description=doing)]


def configurations() -> Iterator[tuple[str, str, Configuration]]:
    """The drafter, its drafts in words, and its engine."""
    for drafter, method in DRAFTERS.items():
        for nodes in (PUBLISHED.depth, *SIZES):
            shape = "tree" if nodes > PUBLISHED.depth else "chain"
            yield drafter, f"{shape} of {nodes}", forced(Configuration(method, published(method)), nodes)


def measure(prompts: Sequence[list[int]], place: Path) -> Iterator[dict[str, Any]]:
    with load_engine(Configuration("plain"), place) as engine:
        plain = {kind: answers(engine, prompts, one, f"plain, {kind}") for kind, one in STRUCTURES.items()}
    for drafter, drafts, configuration in configurations():
        with load_engine(configuration, place) as engine:
            for kind, structure in STRUCTURES.items():
                given = answers(engine, prompts, structure, f"{drafter}, {drafts}, {kind}")
                check_same(f"{drafter}, {drafts}, {kind}", given, plain[kind])
                own = [turn for turn, other in zip(given, plain[kind], strict=True) if not loops(other)]
                found = sum((turn.speculation for turn in own), Speculation()).acceptance_length
                figure = {"count": len(own), "tokens_per_verification": round(found, 3)}
                yield {"drafter": drafter, "drafts": drafts, "structure": kind} | figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for structured_trees.json")
    show("structured_trees", "tokens per verification", measure, parser.parse_args().output)


if __name__ == "__main__":
    main()
