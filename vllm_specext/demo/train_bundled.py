"""Train the bundled drafters with the command that users have, and put them where the demonstration takes them from.

    python -m vllm_specext.demo.train_bundled --work WORK griffin moa eagle3

All learn from the same rows (``make_rows.py``), each by its recipe in ``recipes``. An interrupted training goes on with
the same command. Written into the folder of a bundled drafter are the weights, the configuration, the recipe with the
losses, and its acceptance on held-out text of each kind (``acceptance.py``).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from vllm_specext import served_drafter
from vllm_specext.demo.acceptance import BY_RECIPE, measured
from vllm_specext.demo.make_rows import FILE
from vllm_specext.demo.training_text import LENGTH
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.training.choices import Trained
from vllm_specext.training.pipeline.methods import TRAINABLE

RECIPES = Path(__file__).with_name("recipes")
TEXTS, CONTINUATIONS = 3500, 1700
WRITTEN = ("model.safetensors", "config.json", "training.json")
ACCEPTANCE = "acceptance.json"


def make_rows(work: Path) -> Path:
    rows = work / FILE
    if not rows.exists():
        sizes = (f"--texts={TEXTS}", f"--continuations={CONTINUATIONS}")
        subprocess.run([sys.executable, "-m", "vllm_specext.demo.make_rows", f"--work={work}", *sizes], check=True)
    return rows


def train(name: Trained, rows: Path, run: Path, processes: int) -> Path:
    """The folder of the trained drafter."""
    command = [sys.executable, "-m", "vllm_specext", "train", name, f"--target={TARGET}", f"--data={rows}"]
    command += [f"--output={run}", f"--recipe={RECIPES / name}.toml", f"--max-length={LENGTH}", "--dtype=float32"]
    status = subprocess.run([*command, "--temperature=0", f"--processes={processes}"], check=False).returncode
    if status:
        sys.exit(status)  # the command has said why
    return run / "drafter"


def keep(name: Trained, drafter: Path) -> None:
    """In the place of the bundled one. Its card is written by hand and stays."""
    folder = MODELS / name
    for file in WRITTEN:
        shutil.copyfile(drafter / file, folder / file)
    served_drafter.write(folder, TRAINABLE[name].serves, os.path.relpath(TARGET, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the rows and of the trainings")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="of a training")
    parser.add_argument("drafters", nargs="+", choices=BY_RECIPE)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rows = make_rows(args.work)
    for name in args.drafters:
        keep(name, train(name, rows, args.work / name, args.processes))
        figures = measured(TRAINABLE[name], MODELS / name, args.work)
        (MODELS / name / ACCEPTANCE).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
