"""A training of a block drafter, from packs to a checkpoint. The same seeds give the same drafter."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vllm_specext.training.batches import MadeBatches, made_ahead
from vllm_specext.training.block.blocks import make_blocks
from vllm_specext.training.block.checkpoint import write_checkpoint
from vllm_specext.training.block.dflash import DFlashStep
from vllm_specext.training.block.dspark import DSparkStep
from vllm_specext.training.block.shape import BlockDrafterShape
from vllm_specext.training.loop import fit
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.processes import is_first_process
from vllm_specext.training.run import Run, write_record


def train_blocks(
    step: DFlashStep | DSparkStep,
    shape: BlockDrafterShape,
    packs: PackedBatches,
    out_dir: Path,
    run: Run | None = None,
) -> list[dict[str, Any]]:
    """Train the model of ``step``, of this ``shape``, in place on ``packs``, whose rows have states of the target's
    layers, and write it to ``out_dir``, in float32.

    A training that was interrupted goes on where the state of ``run`` is. Returns the log, and writes it beside the
    checkpoint as ``training.json``.
    """
    recipe = step.recipe
    settings = asdict(recipe) | {"block_size": shape.block}
    make = partial(make_blocks, count=recipe.anchors, width=shape.block, drafted=shape.drafted, seed=recipe.seed)
    batches = MadeBatches(packs, make, ahead=made_ahead(packs.device, run))
    log = fit(step, batches, recipe.stages(), replace(run or Run(), settings=settings))
    if is_first_process():
        write_checkpoint(out_dir, shape, step.model.state_dict(), torch.float32)
        write_record(out_dir, {"recipe": settings, "log": log})
    return log
