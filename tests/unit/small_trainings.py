"""One small training of each drafter: GRIFFIN, MoA, EAGLE-3, DFlash, DSpark and a module, on a random target, with a
state every second step.

    python -m tests.unit.small_trainings METHOD FOLDER STEP

is killed in the middle of that step.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from tests.unit.interruptions import signalled_in
from tests.unit.tiny_dflash import tiny_dflash, tiny_dspark
from tests.unit.tiny_eagle3 import tiny_eagle3
from tests.unit.tiny_llama import VOCABULARY, tiny_llama
from tests.unit.tiny_modules import tiny_module
from vllm_specext.training.block.dflash import DFlashStep, DFlashTraining
from vllm_specext.training.block.dspark import DSparkStep, DSparkTraining
from vllm_specext.training.block.ends import Ends
from vllm_specext.training.block.shape import BlockDrafterShape
from vllm_specext.training.block.train import train_blocks
from vllm_specext.training.eagle3.train import Eagle3Training, train_eagle3
from vllm_specext.training.features import TargetRows
from vllm_specext.training.griffin.train import GriffinTraining, new_griffin_drafter, train_griffin
from vllm_specext.training.moa.target import TargetStateReader
from vllm_specext.training.moa.train import MoATraining, train_moa
from vllm_specext.training.moa.untrained import new_moa_drafter
from vllm_specext.training.mtp.train import MtpTraining, train_mtp
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.run import Run

LOG_EVERY = 2


def texts() -> list[Tensor]:
    """Twelve rows, so that batches of five begin a new round in the middle of one."""
    rows = torch.randint(0, VOCABULARY, (12, 20), generator=torch.Generator().manual_seed(0))
    return [row[: 20 - i % 3] for i, row in enumerate(rows)]


def griffin(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(2)
    model = new_griffin_drafter(target, mlp_size=24, heads=4, kv_heads=4, head_dim=8)
    recipe = GriffinTraining(
        steps_per_stage=(5, 6), learning_rates=(3e-3, 1e-3), warmup_steps=3, optimizer="muon", log_every=LOG_EVERY
    )
    packs = PackedBatches(TargetRows(target, texts(), seed=1, together=5), tokens=50, size=2)
    train_griffin(model, target.lm_head.weight, packs, folder, recipe, run=Run(state))
    return model


def moa(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(3)
    sizes = {"mlp_size": 40, "kv_heads": 2, "lsa_mlp_size": 16, "lsa_kv_heads": 2}
    model = new_moa_drafter(target, **sizes)
    recipe = MoATraining(steps=11, warmup_steps=3, drafted=(3, 5), optimizer="muon", log_every=LOG_EVERY)
    train_moa(
        model, target.lm_head.weight, None, TargetStateReader(target, texts(), 5, 1), folder, recipe, run=Run(state)
    )
    return model


def eagle3(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(6)
    model = tiny_eagle3(target)
    embedding, head = target.get_input_embeddings().weight, target.lm_head.weight
    recipe = Eagle3Training(
        steps_per_stage=(5, 6), learning_rates=(8e-3, 4e-3), warmup_steps=3, optimizer="muon", log_every=LOG_EVERY
    )
    rows = TargetRows(target, texts(), seed=0, layers=model.shape.layers, kept=False)
    packs = PackedBatches(rows, tokens=25, size=4)
    train_eagle3(model, embedding, head, packs, folder, recipe, run=Run(state))
    return model


OF_BLOCKS: dict[str, Any] = {
    "steps_per_stage": (11,), "learning_rates": (8e-3,), "warmup_steps": 3, "optimizer": "muon",
    "log_every": LOG_EVERY, "anchors": 6,
}  # fmt: skip


def dflash(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(6)
    model = tiny_dflash(target)
    ends = Ends(target.get_input_embeddings().weight, target.lm_head.weight, model.shape.mask)
    step = DFlashStep(model, ends, model.shape.drafted, DFlashTraining(**OF_BLOCKS))
    train_blocks(step, model.shape, packs_for(target, model.shape), folder, run=Run(state))
    return model


def dspark(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(6)
    model = tiny_dspark(target)
    ends = Ends(target.get_input_embeddings().weight, target.lm_head.weight, model.shape.mask)
    step = DSparkStep(model, ends, model.shape.drafted, DSparkTraining(**OF_BLOCKS))
    train_blocks(step, model.shape, packs_for(target, model.shape), folder, run=Run(state))
    return model


def mtp(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(2)
    model = tiny_module(target)
    embedding, head = target.get_input_embeddings().weight, target.lm_head.weight
    recipe = MtpTraining(
        steps_per_stage=(11,), learning_rates=(8e-3,), warmup_steps=3, optimizer="muon", log_every=LOG_EVERY
    )
    packs = PackedBatches(TargetRows(target, texts(), seed=0), tokens=25, size=4)
    train_mtp(model, embedding, head, packs, folder, recipe, run=Run(state))
    return model


def packs_for(target: LlamaForCausalLM, shape: BlockDrafterShape) -> PackedBatches:
    return PackedBatches(TargetRows(target, texts(), seed=0, layers=shape.reads, kept=False), tokens=25, size=4)


METHODS: dict[str, Callable[[Path, Path | None], nn.Module]] = {
    "griffin": griffin,
    "moa": moa,
    "eagle3": eagle3,
    "dflash": dflash,
    "dspark": dspark,
    "mtp": mtp,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    method, folder, step = sys.argv[1:]
    torch.optim.AdamW.step = signalled_in(int(step), signal.SIGKILL)
    METHODS[method](Path(folder), Path(folder) / "state.pt")
