"""The command line: which parts, within how many seconds, and where results go.

Ends with status 0 when everything that ran was right, 1 when a result was wrong or a part failed, 2 without a GPU.
"""

import argparse
import shlex
import signal
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import gpu_suite
from benchmarks.gpu_suite import machine, plots, report, runner
from benchmarks.gpu_suite.compiling import compile_first
from benchmarks.gpu_suite.engine_methods import MEBIBYTES
from benchmarks.gpu_suite.part_process import write_rows
from benchmarks.gpu_suite.parts import PARTS, chosen
from benchmarks.gpu_suite.store import Store

WIDTH = 150
NO_GPU = "This suite measures an NVIDIA GPU and torch finds none here."


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_suite",
        description=gpu_suite.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", default=[], metavar="PART", help="only these; engine: all engine:...")
    parser.add_argument("--budget", type=float, default=480, metavar="SECONDS", help="for all parts together (480)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder that holds one per GPU")
    parser.add_argument("--again", action="store_true", help="also parts that are done")
    parser.add_argument(
        "--compile", type=float, metavar="SECONDS", help="at first, on all cores, what kernels' parts need"
    )
    parser.add_argument("--commit", help="to be recorded where the sources come without git's folder")
    parser.add_argument("--list", action="store_true", help="show the parts and end")
    parser.add_argument("--one", choices=[part.name for part in PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.one:
        write_rows(next(part for part in PARTS if part.name == args.one), args.rows)
        return 0
    # As ^C: what is measured so far is kept, also where a machine's time ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    if args.list:
        for part in PARTS:
            console.print(f"{part.name:28}{part.about}")
        return 0
    try:
        parts = chosen(args.parts)
    except ValueError as error:
        parser.error(str(error))
    import torch

    if not torch.cuda.is_available():
        console.print(NO_GPU)
        return 2
    command = shlex.join(["python", "-m", "benchmarks.gpu_suite", *(sys.argv[1:] if arguments is None else arguments)])
    described = machine.describe() | {"commit": machine.commit(args.commit), "command": command}
    store = Store(args.out / machine.slug(described["gpu"]))

    def tell(text: str) -> None:
        console.print(text, markup=False)

    if args.compile:
        compile_first(parts, args.compile, tell)
    became = runner.run_all(
        parts,
        store,
        described,
        budget=args.budget,
        again=args.again,
        order=[part.name for part in PARTS],
        together=max(1, described["memory_mebibytes"] // MEBIBYTES),
        tell=tell,
    )
    return summarise(console, store, became)


def summarise(console: Console, store: Store, became: dict[str, str]) -> int:
    """Tables, plots and a line for each part; the exit status."""
    for table in report.tables(store):
        console.print(table)
    drawn = plots.plots(store)
    if drawn is None:
        console.print("There is no matplotlib here, so no plots were drawn.")
    for name, what in became.items():
        console.print(f"{name}: {what.splitlines()[0]}", markup=False)
    console.print(f"Results are in {store.folder}.", markup=False)
    wrong = [name for name in became if any(row.get("wrong") for row in store.rows(name))]
    if wrong:
        console.print(f"Wrong results in {', '.join(wrong)}.", markup=False)
    failed = any(what.startswith("failed") for what in became.values())
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
