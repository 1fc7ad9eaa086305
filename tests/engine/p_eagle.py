"""A P-EAGLE drafter, made of the bundled one for EAGLE-3: its first position is drafted as well as that one's, and the
others by rows that nobody has trained."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.engine.conftest import of_method
from tests.engine.workload import EAGLE3

MASK = 198
"""The token that stands for what is not known yet. With it and the number below a row attends to the rows before it so
much that one row too many would show."""


def mask_hidden(width: int) -> torch.Tensor:
    """What is read in the place of so many numbers of the target's states, ``[1, width]``."""
    return torch.randn(1, width, generator=torch.Generator().manual_seed(46)).half()


def p_eagle(folder: Path, **keys: Any) -> Path:
    """In the layout of the first ones that were released, with these ``keys`` in its configuration."""
    own, tensors = json.loads((EAGLE3 / "config.json").read_text()), load_file(EAGLE3 / "model.safetensors")
    config = {key: value for key, value in own.items() if not key.startswith(("speculators", "transformer_layer"))}
    tensors["mask_hidden"] = mask_hidden(tensors["fc.weight"].shape[1])
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"ptd_token_id": MASK} | keys))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def p_eagle_tree(folder: Path, **own: Any) -> dict[str, Any]:
    """Arguments for an engine with trees of one that is made in ``folder``."""
    return of_method("peagle-tree", p_eagle(folder), 24, 4, **own)
