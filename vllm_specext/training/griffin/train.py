"""GRIFFIN's training, in stages.

The first reads the target's features; stage ``j`` makes ``j`` passes over each batch, of which the later ones read the
drafter's own features. The embedding and the head are the target's and stay as they are. The same seeds give the same
drafter.
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import GriffinShape, write_checkpoint
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.features import NOISE, Batch, FeatureRows, make_batch
from vllm_specext.training.griffin.losses import AlignmentMask, MaskShift, TargetDistribution, pass_losses
from vllm_specext.training.griffin.passes import MaskedScore, training_passes
from vllm_specext.training.loop import fit, write_record
from vllm_specext.training.optimization import OptimizerName, linear, make_optimizers
from vllm_specext.training.stages import Stage, Steps
from vllm_specext.training.step import Progress, TrainingStep

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class GriffinRecipe:
    """How to train. Where a default is not the released checkpoints' value, that value is named."""

    steps_per_stage: tuple[int, ...] = (1000, 1000, 1000)
    """Optimizer steps of stages 1, 2, ...; one entry for each stage."""
    learning_rates: tuple[float, ...] = (5e-5, 3e-5, 3e-5)
    warmup_steps: int = 100
    """Steps of warm-up in each stage, at most the whole of it (released: 2000)."""
    schedule_steps: int | None = None
    """The step of a stage at which the linear decay reaches zero: the last one, unless given (released: 800 000, which
    no stage reached)."""
    weight_decay: float = 0.01
    clip_value: float = 0.5
    optimizer: OptimizerName = "adamw"
    """Muon learns far more in few steps. Released: AdamW."""
    muon_factor: float = 5.0
    """Muon's learning rate as a multiple of AdamW's."""
    feature_weight: float = 1.0
    token_weight: float = 0.1
    top_k_weight: float = 0.5
    """The weight from the second stage on; the first has no top-k loss."""
    mask_top_k: int = 3
    mask_shift: MaskShift = "code"
    masked_score: MaskedScore = "-inf"
    """Released: ``zero``, from the second stage on."""
    noise: float = NOISE
    bfloat16: bool = False
    log_every: int = 50
    """Steps from one log entry, and state to go on from, to the next."""
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.learning_rates) != len(self.steps_per_stage):
            raise ConfigurationError(
                f"learning_rates has {len(self.learning_rates)} entries, but steps_per_stage has "
                f"{len(self.steps_per_stage)}; each stage needs one of both."
            )


def new_griffin_drafter(
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


@dataclass
class NoisyRows:
    """GRIFFIN's batches: rows with features, and the noise on those."""

    rows: FeatureRows
    noise: float
    generator: torch.Generator
    device: torch.device

    def next(self, progress: Progress) -> Batch:
        return make_batch(self.rows.take().to(self.device), self.noise, self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows.state_dict(), "noise": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows.load_state_dict(state["rows"])
        self.generator.set_state(state["noise"])


class GriffinStep(TrainingStep[Batch]):
    """``progress.stage`` passes over a batch. The loss is the sum of their losses, the terms are ``[passes]``: feature,
    token, top-k loss, share of positions counted."""

    def __init__(self, model: GriffinDrafter, head: Tensor, recipe: GriffinRecipe) -> None:
        super().__init__()
        self.model: GriffinDrafter = model
        self.head = head
        self.recipe = recipe

    def forward(self, batch: Batch, progress: Progress) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast(self.head.device.type, dtype=torch.bfloat16, enabled=self.recipe.bfloat16):
            return self.losses(batch, progress.stage)

    def losses(self, batch: Batch, passes: int) -> tuple[Tensor, dict[str, Tensor]]:
        recipe, head = self.recipe, self.head
        target = TargetDistribution.from_logits(batch.target_features @ head.T)
        mask = AlignmentMask(batch.input_ids, batch.loss_mask, recipe.mask_top_k, recipe.mask_shift)
        # In the code that trained the released checkpoints both are there from the second stage on.
        masked_score: MaskedScore = recipe.masked_score if passes > 1 else "-inf"
        top_k_weight = recipe.top_k_weight if passes > 1 else 0.0
        total = torch.zeros((), device=head.device)
        terms = []
        for predict, regress in training_passes(self.model, batch.input_ids, batch.features, passes, masked_score):
            current = mask.current()
            logits = predict @ head.T
            losses = pass_losses(regress, logits, batch.target_features, target, current)
            mask.update(logits)
            total = total + losses.total(recipe.feature_weight, recipe.token_weight, top_k_weight)
            terms.append(torch.stack((losses.feature, losses.token, losses.top_k, current.float().mean())).detach())
        names = ("feature", "token", "top_k", "counted")
        return total, dict(zip(names, torch.stack(terms, dim=1), strict=True))


def train_griffin(
    model: GriffinDrafter,
    head: Tensor,
    rows: FeatureRows,
    out_dir: Path,
    recipe: GriffinRecipe,
    dtype: torch.dtype = torch.float32,
    state: Path | None = None,
) -> list[dict[str, Any]]:
    """Train ``model`` in place on ``rows`` and write it to ``out_dir``, in ``dtype``.

    ``head`` ``[V, d]`` is the target's output matrix; ``state`` is the file from which an interrupted training goes on.
    Returns the log, and writes it beside the checkpoint as ``training.json``: stage, step, and every pass's losses
    averaged over the steps since the entry before.
    """
    batches = NoisyRows(rows, recipe.noise, torch.Generator().manual_seed(recipe.seed), head.device)
    log = fit(GriffinStep(model, head, recipe), batches, stages(recipe), state, asdict(recipe))
    write_checkpoint(out_dir, model.shape, model.state_dict(), dtype)
    write_record(out_dir, {"recipe": asdict(recipe), "log": log})
    return log


def stages(recipe: GriffinRecipe) -> list[Stage]:
    return [
        Stage(
            Steps(steps, recipe.log_every),
            partial(
                make_optimizers,
                name=recipe.optimizer,
                rate=rate,
                weight_decay=recipe.weight_decay,
                muon_factor=recipe.muon_factor,
            ),
            linear(min(recipe.warmup_steps, steps), recipe.schedule_steps or steps),
            partial(nn.utils.clip_grad_value_, clip_value=recipe.clip_value),
        )
        for steps, rate in zip(recipe.steps_per_stage, recipe.learning_rates, strict=True)
    ]
