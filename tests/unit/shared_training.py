"""A small GRIFFIN training, three passes over random features, that several processes share.

    python -m tests.unit.shared_training FOLDER SCENARIO ...

is one of them, after the launcher's variables. ``launch`` starts them all.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.interruptions import signalled_in
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import GriffinShape
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training import gradients
from vllm_specext.training.batches import Batch, FeatureBatches
from vllm_specext.training.generators import generator
from vllm_specext.training.gradients import totals
from vllm_specext.training.griffin.train import GriffinStep, GriffinTraining
from vllm_specext.training.loop import fit
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.processes import ending_at_once
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.run import Run
from vllm_specext.training.step import Progress, Sums

ROOT = Path(__file__).parents[2]
VOCABULARY, WIDTH, ROWS = 12, 16, 40
STEPS, KILLED_IN, STATE_EVERY = 12, 8, 3
RECIPE = GriffinTraining(
    steps_per_stage=(0, 0, STEPS), learning_rates=(1e-2, 1e-2, 1e-2), warmup_steps=2, log_every=STATE_EVERY
)


class RandomRows:
    """Rows of 3 to 24 tokens, most of them the likeliest after the feature before."""

    def __init__(self) -> None:
        self.head = torch.randn(VOCABULARY, WIDTH, generator=generator(1))
        self.lengths = torch.randint(3, 25, (ROWS,), generator=generator(2)).tolist()

    def order(self, epoch: int) -> list[int]:
        return torch.randperm(ROWS, generator=generator(3, epoch)).tolist()

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        return [self._row(row) for row in rows]

    def _row(self, row: int) -> FeatureRow:
        features = torch.randn(self.lengths[row], WIDTH, generator=generator(4, row))
        ids = (features @ self.head.T).argmax(dim=-1).roll(1)
        mask = torch.rand(len(ids), generator=generator(5, row)) < 0.1 + 0.8 * (row % 2)
        return FeatureRow(ids.int(), mask.to(torch.uint8), features.bfloat16())


class DroppedOut(GriffinStep):
    """Draws random numbers of the process's own."""

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        return super().forward(replace(batch, features=nn.functional.dropout(batch.features, 0.1)), progress)


class Hidden(GriffinStep):
    """Uses parameters that it does not have as its own, so that nobody averages their gradients."""

    def __init__(self, model: GriffinDrafter, head: Tensor, recipe: GriffinTraining) -> None:
        super().__init__(model, head, recipe)
        del self.model
        self.own = nn.Parameter(torch.zeros(()))
        self.hidden = [model]

    def __getattr__(self, name: str) -> Any:
        return self.hidden[0] if name == "model" else super().__getattr__(name)

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        sums = super().forward(batch, progress)
        return sums._replace(loss=sums.loss + self.own)


def drafter() -> GriffinDrafter:
    shape = GriffinShape(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        heads=2,
        kv_heads=1,
        head_dim=8,
        mlp_size=24,
        tgf_size=24,
        qkv_bias=False,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = GriffinDrafter(shape)
    model.embed_tokens.requires_grad_(False)
    return model


def train(
    kind: type[GriffinStep] = GriffinStep, run: Run | None = None, size: int = 4
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    source, model = RandomRows(), drafter()
    batches = FeatureBatches(PackedBatches(source, 32, size), amplitude=1.0)
    torch.manual_seed(int(os.environ.get("RANK", 0)))
    log = fit(kind(model, source.head, RECIPE), batches, RECIPE.stages(), run)
    return model.state_dict(), log


def means_of_each(accelerator: Any, sums: Sums) -> Sums:
    """As if every process divided its sums by its own counts."""
    whole = totals(accelerator, sums)
    return whole._replace(counts=sums.counts.double() * accelerator.num_processes)


def scenario(name: str, folder: Path, process: int) -> Any:
    """What a process has at the end: weights, or a message."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "means":
            patch.setattr(gradients, "totals", means_of_each)
        elif name == "hidden":
            try:
                return train(Hidden)[0]
            except ConfigurationError as error:
                return str(error)
        elif name == "accumulated":
            return train(run=Run(accumulate=2), size=2)[0]
        elif name == "unbroken":
            return train(DroppedOut)[0]
        elif name == "apart":
            state = folder / f"of-{process}.pt"
            train(run=Run(state=folder / "of-0.pt"))
            try:
                return train(run=Run(state=state))[0]
            except ConfigurationError as error:
                return str(error)
        elif name in ("killed", "resumed"):
            if name == "killed" and process == 1:
                patch.setattr(torch.optim.AdamW, "step", signalled_in(KILLED_IN, signal.SIGKILL))
            return train(DroppedOut, Run(state=folder / "state.pt"))[0]
        elif name == "signalled":
            if process == 1:
                patch.setattr(torch.optim.AdamW, "step", signalled_in(5, signal.SIGTERM))
            try:
                return train(run=Run(state=folder / "signalled.pt", save_every=100, log=folder / "log.jsonl"))[0]
            except SystemExit as ended:
                return str(ended.code)
        return train()[0]


def launch(folder: Path, *scenarios: str, processes: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Run ``scenarios`` one after the other in as many processes; what those wrote is in ``folder``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for process in range(processes):
        places = {"RANK": process, "LOCAL_RANK": process, "WORLD_SIZE": processes, "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(x) for name, x in places.items()}, "MASTER_ADDR": "127.0.0.1"}
        command = [sys.executable, "-m", "tests.unit.shared_training", str(folder), *scenarios]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, **output))  # type: ignore[call-overload]
    outputs = [one.communicate(timeout=300) for one in started]
    return [
        subprocess.CompletedProcess(one.args, one.returncode, *output)
        for one, output in zip(started, outputs, strict=True)
    ]


def result(folder: Path, name: str, process: int) -> Any:
    kept = torch.load(folder / f"{name}-{process}.pt", weights_only=True)
    return json.loads(kept["message"]) if "message" in kept else kept["weights"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    into, *names = sys.argv[1:]
    rank = int(os.environ["RANK"])
    with ending_at_once():
        for wanted in names:
            made = scenario(wanted, Path(into), rank)
            value = {"message": json.dumps(made)} if isinstance(made, str) else {"weights": made}
            torch.save(value, Path(into) / f"{wanted}-{rank}.pt")
        sys.exit()
