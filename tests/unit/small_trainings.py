"""One small training of each drafter: GRIFFIN, MoA and EAGLE-3, on a random target, with a state every second step.

    python -m tests.unit.small_trainings METHOD FOLDER STEP

is killed in the middle of that step.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.unit.tiny_llama import VOCABULARY, tiny_llama
from vllm_specext.demo import train_eagle3
from vllm_specext.demo.eagle3 import Eagle3Drafter
from vllm_specext.training.features import FeatureRows
from vllm_specext.training.griffin.train import GriffinRecipe, new_griffin_drafter, train_griffin
from vllm_specext.training.moa.target import TargetStateReader
from vllm_specext.training.moa.train import MoARecipe, train_moa
from vllm_specext.training.moa.untrained import new_moa_drafter

LOG_EVERY = 2


def texts() -> list[Tensor]:
    """Twelve rows, so that batches of five begin a new round in the middle of one."""
    rows = torch.randint(0, VOCABULARY, (12, 20), generator=torch.Generator().manual_seed(0))
    return [row[: 20 - i % 3] for i, row in enumerate(rows)]


def griffin(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(2)
    model = new_griffin_drafter(target, mlp_size=24, heads=4, kv_heads=4, head_dim=8)
    recipe = GriffinRecipe(
        steps_per_stage=(5, 6), learning_rates=(3e-3, 1e-3), warmup_steps=3, optimizer="muon", log_every=LOG_EVERY
    )
    rows = FeatureRows(target, texts(), 5, seed=1)
    train_griffin(model, target.lm_head.weight, rows, folder, recipe, state=state)
    return model


def moa(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(3)
    sizes = {"mlp_size": 40, "kv_heads": 2, "lsa_mlp_size": 16, "lsa_kv_heads": 2}
    model = new_moa_drafter(target, **sizes)
    recipe = MoARecipe(steps=11, warmup_steps=3, drafted=(3, 5), optimizer="muon", log_every=LOG_EVERY)
    train_moa(model, target.lm_head.weight, None, TargetStateReader(target, texts(), 5, 1), folder, recipe, state=state)
    return model


def eagle3(folder: Path, state: Path | None) -> nn.Module:
    target = tiny_llama(6)
    torch.manual_seed(1)
    model = Eagle3Drafter(target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_eagle3, "STEPS", (5, 6))
        patch.setattr(train_eagle3, "RATES", (8e-3, 4e-3))
        patch.setattr(train_eagle3, "BATCH", 5)
        train_eagle3.train(model, target, texts(), folder, state, LOG_EVERY)
    return model


METHODS: dict[str, Callable[[Path, Path | None], nn.Module]] = {"griffin": griffin, "moa": moa, "eagle3": eagle3}


def killed_in(step: int) -> Callable[[torch.optim.AdamW], None]:
    """AdamW's step, which kills this process when it begins for the ``step``-th time."""
    step_of, begun = torch.optim.AdamW.step, []

    def killed(optimizer: torch.optim.AdamW) -> None:
        begun.append(None)
        if len(begun) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        step_of(optimizer)

    return killed


if __name__ == "__main__":
    torch.set_num_threads(1)
    method, folder, step = sys.argv[1:]
    torch.optim.AdamW.step = killed_in(int(step))
    METHODS[method](Path(folder), Path(folder) / "state.pt")
