"""What trees gain if it is learned how far a drafter's probabilities can be trusted, at several temperatures.

    python -m benchmarks.calibrated_trees --output benchmarks/results/cpu

The bundled drafters on the demonstration's held-out prompts, one at a time, with the key ``calibrated_trees`` and
without. Each row's engine begins with what it assumes at first, and learns from one prompt to the next. Greedy and
seeded answers must be those of plain decoding, else nothing is written. As in the demonstration, prompts whose greedy
continuation is a loop do not count. Nothing is timed. Writes ``calibrated_trees.json``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.fewer_layers import write_without_layers
from benchmarks.held_out_rows import Rows, show
from benchmarks.tokens_per_verification import WITHOUT_LAYERS, check_same, forced, load_engine, loops, published
from vllm_specext.bench.configurations import Configuration
from vllm_specext.measure.arguments import compared_arguments, served
from vllm_specext.measure.bundled import MAX_TOKENS, TARGET
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.plain import SEEDED_ENVIRONMENT
from vllm_specext.measure.sampling import Sampling
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Turn

METHODS = ("griffin", "eagle3-tree", "draft-model-tree", "dflash-tree")
SAMPLINGS = (Sampling(), Sampling(0.6), Sampling(1.0))
SIZES = (8, 24, 59)


def answers(
    engine: EngineProcess, prompts: Sequence[list[int]], nodes: int | None, sampling: Sampling, doing: str
) -> list[Turn]:
    """Ask each prompt on its own."""
    turns = track(prompts, description=f"{doing}, {sampling}")
    return [engine.turn([prompt], MAX_TOKENS, 1, nodes, sampling=sampling) for prompt in turns]


def measure(prompts: Sequence[list[int]], folder: Path) -> Rows:
    """A row for each drafter, temperature and size."""
    arguments = [f"--model={served(None)}", *compared_arguments(None, [])]
    with EngineProcess("plain", arguments, None, folder / "plain.log", SEEDED_ENVIRONMENT) as engine:
        plain = [answers(engine, prompts, None, sampling, "plain") for sampling in SAMPLINGS]
    counts = [not loops(turn) for turn in plain[0]]
    small = folder / "small"
    write_without_layers(TARGET, WITHOUT_LAYERS, small)
    for method in METHODS:
        own = published(method, small if method == "draft-model-tree" else None)
        found: dict[tuple[float, int], list[float]] = {}
        for learns in (False, True):
            drafter = forced(Configuration(method, own | {"calibrated_trees": learns}), SIZES[-1])
            for sampling, expected in zip(SAMPLINGS, plain, strict=True):
                for nodes in SIZES:
                    with load_engine(drafter, folder) as engine:
                        given = answers(engine, prompts, nodes, sampling, f"{method}, {nodes} nodes")
                    check_same(f"{method}, {nodes} nodes, {sampling}", given, expected)
                    told = (turn.speculation for turn, counted in zip(given, counts, strict=True) if counted)
                    length = sum(told, Speculation()).acceptance_length
                    found.setdefault((sampling.temperature, nodes), []).append(length)
        for (temperature, nodes), (as_given, learned) in found.items():
            yield {
                "method": method,
                "temperature": temperature,
                "nodes": nodes,
                "as_given": as_given,
                "learned": learned,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for calibrated_trees.json")
    show("calibrated_trees", "tokens per verification", measure, parser.parse_args().output)


if __name__ == "__main__":
    main()
