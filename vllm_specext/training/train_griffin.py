"""GRIFFIN's training, in stages.

The first reads the target's features; stage ``j`` makes ``j`` passes over each batch, of which the later ones read the
drafter's own features. The embedding and the head are the target's and stay as they are. The same seeds give the same
drafter.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import GriffinShape, write_checkpoint
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.features import NOISE, Batch, Rows, make_batch
from vllm_specext.training.griffin_losses import AlignmentMask, MaskShift, TargetDistribution, pass_losses
from vllm_specext.training.griffin_passes import MaskedScore, training_passes
from vllm_specext.training.optimization import OptimizerName, linear_schedule, make_optimizers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOG_EVERY = 50
"""Steps."""


@dataclass(frozen=True)
class Recipe:
    """How to train. Where a default is not the released checkpoints' value, that value is named."""

    steps_per_stage: tuple[int, ...] = (1000, 1000, 1000)
    """Optimiser steps of stages 1, 2, ...; one entry for each stage."""
    learning_rates: tuple[float, ...] = (5e-5, 3e-5, 3e-5)
    warmup_steps: int = 100
    """Of each stage, and at most the whole of it (released: 2000)."""
    schedule_steps: int | None = None
    """Where the linear decay reaches zero: a stage's end, unless given (released: 800 000, which no stage reached)."""
    weight_decay: float = 0.01
    clip_value: float = 0.5
    optimizer: OptimizerName = "adamw"
    """Muon learns far more in few steps. Released: AdamW."""
    muon_factor: float = 5.0
    """Muon's learning rate as a multiple of AdamW's."""
    feature_weight: float = 1.0
    token_weight: float = 0.1
    top_k_weight: float = 0.5
    """From the second stage on."""
    mask_top_k: int = 3
    mask_shift: MaskShift = "code"
    masked_score: MaskedScore = "-inf"
    """Released: ``zero``, from the second stage on."""
    noise: float = NOISE
    bfloat16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.learning_rates) != len(self.steps_per_stage):
            raise ConfigurationError(
                f"learning_rates has {len(self.learning_rates)} entries, but steps_per_stage has "
                f"{len(self.steps_per_stage)}; each stage needs one of both."
            )


def new_drafter(
    target: "PreTrainedModel", *, mlp_size: int, heads: int, kv_heads: int, head_dim: int, seed: int = 0
) -> GriffinDrafter:
    """An untrained drafter for ``target``, with torch's default initialisation and a copy of the target's embedding."""
    config = target.config
    embedding = target.get_input_embeddings().weight
    rope = getattr(config, "rope_parameters", None) or {}
    shape = GriffinShape(
        vocab_size=embedding.shape[0],
        hidden_size=embedding.shape[1],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_size=mlp_size,
        tgf_size=mlp_size,
        qkv_bias=False,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=float(rope.get("rope_theta") or config.rope_theta),
        max_position_embeddings=config.max_position_embeddings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GriffinDrafter(shape)
    model.embed_tokens.weight.data.copy_(embedding.detach())
    model.embed_tokens.requires_grad_(False)
    return model


def train(
    model: GriffinDrafter,
    head: Tensor,
    batches: Iterator[Rows],
    out_dir: Path,
    recipe: Recipe,
    dtype: torch.dtype = torch.float32,
    first_stage: int = 1,
) -> list[dict[str, Any]]:
    """Train ``model`` in place on endless ``batches`` and write it to ``out_dir``, in ``dtype``, after each stage.

    ``head`` ``[V, d]`` is the target's output matrix. Returns, and writes beside the checkpoint as ``training.json``,
    a list of dictionaries: stage, step, and every pass's losses averaged over the steps since the entry before.
    Stages before ``first_stage`` have been trained into ``model`` already; nothing else is handed on between stages.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    log: list[dict[str, Any]] = []
    for stage, (steps, rate) in enumerate(zip(recipe.steps_per_stage, recipe.learning_rates, strict=True), start=1):
        if stage < first_stage:
            continue
        optimizers = make_optimizers(trained, recipe.optimizer, rate, recipe.weight_decay, recipe.muon_factor)
        warmup, end = min(recipe.warmup_steps, steps), recipe.schedule_steps or steps
        schedules = [linear_schedule(optimizer, warmup, end) for optimizer in optimizers]
        recent: list[Tensor] = []
        bar = tqdm(range(1, steps + 1), desc=f"stage {stage}", mininterval=5)
        for step in bar:
            batch = make_batch(next(batches).to(head.device), recipe.noise, generator)
            with torch.autocast(head.device.type, dtype=torch.bfloat16, enabled=recipe.bfloat16):
                loss, terms = step_losses(model, head, batch, stage, recipe)
            loss.backward()
            nn.utils.clip_grad_value_(trained, recipe.clip_value)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            recent.append(terms)
            if step % LOG_EVERY == 0 or step == steps:
                log.append({"stage": stage, "step": step, "passes": _summary(recent)})
                bar.set_postfix(token=[row["token"] for row in log[-1]["passes"]])
                recent.clear()
        write_checkpoint(out_dir, model, dtype)
        record = {"recipe": asdict(recipe), "log": log}
        (out_dir / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return log


def step_losses(
    model: GriffinDrafter, head: Tensor, batch: Batch, passes: int, recipe: Recipe
) -> tuple[Tensor, Tensor]:
    """The sum of all passes' losses, and ``[passes, 4]``: feature, token, top-k loss, share of positions counted."""
    target = TargetDistribution.from_logits(batch.target_features @ head.T)
    mask = AlignmentMask(batch.input_ids, batch.loss_mask, recipe.mask_top_k, recipe.mask_shift)
    # In the code that trained the released checkpoints both are there from the second stage on.
    masked_score: MaskedScore = recipe.masked_score if passes > 1 else "-inf"
    top_k_weight = recipe.top_k_weight if passes > 1 else 0.0
    total = torch.zeros((), device=head.device)
    terms = []
    for predict, regress in training_passes(model, batch.input_ids, batch.features, passes, masked_score):
        current = mask.current()
        logits = predict @ head.T
        losses = pass_losses(regress, logits, batch.target_features, target, current)
        mask.update(logits)
        total = total + losses.total(recipe.feature_weight, recipe.token_weight, top_k_weight)
        terms.append(torch.stack((losses.feature, losses.token, losses.top_k, current.float().mean())).detach())
    return total, torch.stack(terms)


def _summary(recent: list[Tensor]) -> list[dict[str, float]]:
    names = ("feature", "token", "top_k", "counted")
    means = torch.stack(recent).mean(dim=0).tolist()
    return [{name: round(value, 4) for name, value in zip(names, row, strict=True)} for row in means]
