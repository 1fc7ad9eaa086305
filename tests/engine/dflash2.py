"""A drafter of DFlash's second kind, which no bundled one is: the bundled DFlash drafter with convolutions that change
little, and made tables of tokens that are neighbours."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.conftest import of_method
from tests.engine.workload import DFLASH

TAPS, GROUP, RANK, CANDIDATES = 2, 16, 8, 6
SCALE = 0.4
"""Of the tables' numbers: scores differ by half a nat then."""
MULTIPLIER = 0.9


def dflash2(made: Path) -> Path:
    """Write it to the folder ``made``."""
    config = json.loads((DFLASH / "config.json").read_text())
    for key in [key for key in config if key.startswith("speculators") or key == "transformer_layer_config"]:
        del config[key]
    config["architectures"] = ["DFlash2DraftModel"]
    config["dflash_config"] |= {
        "conv_kernel_size": TAPS,
        "conv_group_size": GROUP,
        "selector_rank": RANK,
        "selector_top_k": CANDIDATES,
        "output_multiplier": MULTIPLIER,
    }
    d, vocabulary = config["hidden_size"], config["vocab_size"]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float) -> Tensor:
        return (scale * torch.randn(shape, generator=generator)).half()

    own = {
        f"candidate_selector.{side}_codebook": random(vocabulary, RANK, scale=SCALE)
        for side in ("predecessor", "successor")
    }
    own["candidate_selector.hidden_projection.weight"] = random(RANK, d, scale=0.05)
    for name in ("attention_conv", "mlp_conv"):
        base = random(2, TAPS, d, scale=0.05)
        base[:, 0] += 1
        own[f"layers.0.{name}.base_kernel"] = base
        shape = 2 * TAPS * (d // GROUP), d
        own[f"layers.0.{name}.kernel_projection.weight"] = random(*shape, scale=0.002)
    (made / "config.json").write_text(json.dumps(config))
    save_file(load_file(DFLASH / "model.safetensors") | own, made / "model.safetensors")
    return made


def dflash2_tree(folder: Path) -> dict[str, Any]:
    """Arguments for an engine with trees of one that is made in ``folder``."""
    return of_method("dflash-tree", dflash2(folder), 24, 4)
