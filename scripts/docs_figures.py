"""Draw the documents' figures again from the files under ``benchmarks/results``. Nothing is measured.

    python -m scripts.docs_figures                                all of them, as PNG, which the repository keeps
    python -m scripts.docs_figures cpu/tokens_per_verification    this one, which is in the README

The site has them as SVG, which are drawn when it is built (``scripts/docs_hook.py``). ``cpu/swift_search.png`` stays as
its benchmark drew it: its file does not keep the single verifications that the figure shows.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import foreign, step_profile, tokens_per_verification
from benchmarks.ablation import plot as ablation
from benchmarks.ablation import runs
from benchmarks.ablation.rows import ROWS
from benchmarks.gpu_suite import plots as gpu
from benchmarks.gpu_suite.report import rows_of
from benchmarks.gpu_suite.store import Store
from benchmarks.simulated_drafts import __main__ as simulated
from benchmarks.soak import plot as soak
from vllm_specext.bench import plots
from vllm_specext.bench.plots import DPI

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
Draw = Callable[[Path], None]
"""Writes a figure to a path, in the format of its suffix."""


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def of_bench(name: str, picture: Callable[[Sequence[dict[str, Any]]], Figure], path: Path) -> None:
    picture(read(name)["rows"]).savefig(path, dpi=DPI)


def of_tokens(path: Path) -> None:
    result = read("cpu/tokens_per_verification.json")
    counted = sum(result["prompts"].values()) - result["looping"]
    tokens_per_verification.picture(result["rows"], counted).savefig(path, dpi=DPI)


def of_ablation(path: Path) -> None:
    ablation.of_runs(runs.read(RESULTS / "cpu" / "ablation", ROWS)).savefig(path, dpi=DPI)


def of_simulation(path: Path) -> None:
    simulated.picture(read("simulated/drafts.json")).savefig(path, dpi=DPI)


def of_gpu(path: Path) -> None:
    gpu.engine(rows_of(Store(RESULTS / "nvidia-h200"), "engine"), path)


def of_benchmark(name: str, plot: Callable[[Any, Path], None], path: Path) -> None:
    plot(read(name), path)


def of_fusion(path: Path) -> None:
    gpu.fusion(rows_of(Store(RESULTS / "nvidia-h200"), "tgf"), path)


FIGURES: dict[str, Draw] = {
    "cpu/tokens_per_verification": of_tokens,
    "cpu/sweep-speedup-by-concurrency": partial(of_bench, "cpu/sweep.json", plots.speedup),
    "cpu/sweep-by-depth": partial(of_bench, "cpu/sweep.json", plots.by_depth),
    "cpu/acceptance-by-task": partial(of_bench, "cpu/acceptance.json", plots.by_task),
    "cpu/acceptance-by-depth": partial(of_bench, "cpu/acceptance.json", plots.by_depth),
    "cpu/drafters/acceptance-by-task": partial(of_bench, "cpu/drafters/acceptance.json", plots.by_task),
    "cpu/drafters/acceptance-by-depth": partial(of_bench, "cpu/drafters/acceptance.json", plots.by_depth),
    "cpu/nodes/sweep-by-nodes": partial(of_bench, "cpu/nodes/sweep.json", plots.by_nodes),
    "cpu/ablation/ablation": of_ablation,
    "cpu/foreign": partial(of_benchmark, "cpu/foreign.json", foreign.plot),
    "cpu/step_profile": partial(of_benchmark, "cpu/step_profile.json", step_profile.plot),
    **{
        f"cpu/soak/{path.stem}": partial(of_benchmark, f"cpu/soak/{path.name}", soak.plot)
        for path in sorted((RESULTS / "cpu" / "soak").glob("*.json"))
    },
    "simulated/drafts": of_simulation,
    "nvidia-h200/engine": of_gpu,
    "nvidia-h200/tgf": of_fusion,
}
"""By the figure's place under ``benchmarks/results``, without a suffix."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.docs_figures", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *FIGURES], metavar="NAME", help="such as cpu/foreign; all")
    for name in parser.parse_args().names or FIGURES:
        path = RESULTS / f"{name}.png"
        FIGURES[name](path)
        print(path.relative_to(RESULTS.parents[1]))


if __name__ == "__main__":
    main()
