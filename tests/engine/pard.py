"""A PARD drafter, made of the target without some of its layers: its first position is drafted as by that model, and
the others by rows that nobody has trained."""

import json
from pathlib import Path
from typing import Any

from benchmarks.fewer_layers import write_without_layers
from tests.engine.conftest import of_method
from tests.engine.workload import TARGET

KEPT = (0, 1, 2, 3, 4, 6, 8, 9, 10, 11)
"""Layers of the target that the drafter has."""
MASK = 198
"""The token that stands for what is not known yet."""


def pard(folder: Path) -> Path:
    """In the layout of the released ones."""
    folder.mkdir(exist_ok=True)
    write_without_layers(TARGET, KEPT, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pard_token": MASK}))
    return folder


def pard_tree(folder: Path, **own: Any) -> dict[str, Any]:
    """Arguments for an engine with trees of one that is made in ``folder``."""
    return of_method("pard-tree", pard(folder), 24, 4, **own)
