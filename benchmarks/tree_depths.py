"""Tokens per verification of trees that end at several depths, at several temperatures.

    python -m benchmarks.tree_depths --output benchmarks/results/cpu

The bundled GRIFFIN and EAGLE-3 drafters on the demonstration's held-out prompts, one at a time. Greedy and seeded
answers must be those of plain decoding, else nothing is written. As in the demonstration, prompts whose greedy
continuation is a loop do not count. Nothing is timed. Writes ``tree_depths.json``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibrated_trees import SAMPLINGS, answers
from benchmarks.held_out_rows import Rows, show
from benchmarks.tokens_per_verification import PUBLISHED, check_same, forced, load_engine, loops, published
from vllm_specext.bench.configurations import Configuration
from vllm_specext.measure.arguments import compared_arguments, served
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.plain import SEEDED_ENVIRONMENT
from vllm_specext.measure.speculation import Speculation
from vllm_specext.tree.draft_size import depths_of

METHODS = ("griffin", "eagle3-tree")
SIZES = (15, 59)
DEPTHS = depths_of(PUBLISHED)


def measure(prompts: Sequence[list[int]], folder: Path) -> Rows:
    """A row for each drafter, depth, temperature and number of nodes."""
    arguments = [f"--model={served(None)}", *compared_arguments(None, [])]
    with EngineProcess("plain", arguments, None, folder / "plain.log", SEEDED_ENVIRONMENT) as engine:
        plain = [answers(engine, prompts, None, sampling, "plain") for sampling in SAMPLINGS]
    counts = [not loops(turn) for turn in plain[0]]
    for method in METHODS:
        for depth in DEPTHS:
            drafter = forced(Configuration(method, published(method) | {"tree_depth": depth}), SIZES[-1])
            for sampling, expected in zip(SAMPLINGS, plain, strict=True):
                for nodes in SIZES:
                    doing = f"{method}, {nodes} nodes, {depth} deep"
                    with load_engine(drafter, folder) as engine:  # which has learned nothing yet
                        given = answers(engine, prompts, nodes, sampling, doing)
                    check_same(f"{doing}, {sampling}", given, expected)
                    told = (turn.speculation for turn, counted in zip(given, counts, strict=True) if counted)
                    yield {
                        "method": method,
                        "temperature": sampling.temperature,
                        "nodes": nodes,
                        "depth": depth,
                        "tokens_per_verification": sum(told, Speculation()).acceptance_length,
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for tree_depths.json")
    show("tree_depths", "tokens per verification by depth", measure, parser.parse_args().output)


if __name__ == "__main__":
    main()
