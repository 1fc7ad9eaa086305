"""GRIFFIN's training, in stages.

The first reads the target's features; stage ``j`` makes ``j`` passes over each batch, of which the later ones read the
drafter's own features. The embedding and the head are the target's and stay as they are. The same seeds give the same
drafter.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vllm_specext.methods.griffin.checkpoint import GriffinShape, write_checkpoint
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.batches import NOISE, Batch, FeatureBatches, MaskPosition, made_ahead
from vllm_specext.training.griffin.passes import MaskedScore, training_passes
from vllm_specext.training.head_loss import Alignment, HeadWeights, MaskShift, head_losses
from vllm_specext.training.logits import PLAIN, Logits, Scored
from vllm_specext.training.loop import fit
from vllm_specext.training.losses import feature_loss
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.processes import is_first_process
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.staged import StagedTraining
from vllm_specext.training.step import Progress, Sums, TrainingStep

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class GriffinTraining(StagedTraining):
    """How to train. Where a default is not the released checkpoints' value, that value is named."""

    clip_norm: float | None = None
    clip_value: float | None = 0.5
    """The most that each number of a gradient may be: the released checkpoints'. Of a mean over thousands of positions
    hardly any is as large."""
    feature_weight: float = 1.0
    token_weight: float = 0.1
    top_k_weight: float = 0.5
    """The weight from the second stage on; the first has no top-k loss."""
    mask_top_k: int = 3
    mask_shift: MaskShift = "code"
    mask_position: MaskPosition = "token"
    """Released: ``code``."""
    masked_score: MaskedScore = "-inf"
    """Released: ``zero``, from the second stage on."""
    noise: float = NOISE

    def clip(self, trained: Iterable[nn.Parameter]) -> None:
        parameters = list(trained)
        super().clip(parameters)
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, self.clip_value)


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


class GriffinStep(TrainingStep[Batch]):
    """``progress.stage`` passes over a batch. The losses to add up, and the terms, are ``[passes]``: feature, token,
    top-k loss, and the share of the first pass's positions that is counted."""

    def __init__(self, model: GriffinDrafter, head: Tensor, recipe: GriffinTraining, logits: Logits = PLAIN) -> None:
        super().__init__()
        self.model: GriffinDrafter = model
        self.head = head
        self.scored = Scored(logits, logits.without_norm())
        self.recipe = recipe

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        with torch.autocast(self.head.device.type, dtype=torch.bfloat16, enabled=self.recipe.bfloat16):
            return self.losses(batch, progress.stage)

    def weight(self, batch: Batch) -> Tensor:
        return batch.counted.sum()

    def losses(self, batch: Batch, passes: int) -> Sums:
        recipe = self.recipe
        # In the code that trained the released checkpoints both are there from the second stage on.
        masked_score: MaskedScore = recipe.masked_score if passes > 1 else "-inf"
        weights = HeadWeights(recipe.token_weight, recipe.top_k_weight if passes > 1 else 0.0)
        made = list(training_passes(self.model, batch.input_ids, batch.features, batch.layout, passes, masked_score))
        alignment = Alignment(batch.next_ids, batch.layout.positions, recipe.mask_top_k, recipe.mask_shift)
        wanted, counted = batch.target_features, batch.counted
        predicted = [predict for predict, _ in made]
        on_head = head_losses(self.head, predicted, wanted, counted, weights, alignment, self.scored)
        feature = torch.stack(
            [
                (feature_loss(regress, wanted) * mask).sum()
                for (_, regress), mask in zip(made, on_head.masks, strict=True)
            ]
        )
        counts = on_head.masks.sum(dim=(1, 2))
        terms = {"feature": feature.detach(), "token": on_head.token, "top_k": on_head.top_k}
        return Sums(
            recipe.feature_weight * feature + on_head.loss,
            counts,
            {name: (term, counts) for name, term in terms.items()}
            | {"counted": (counts, counted.sum().expand(passes))},
        )


def train_griffin(
    model: GriffinDrafter,
    head: Tensor,
    packs: PackedBatches,
    out_dir: Path,
    recipe: GriffinTraining,
    run: Run | None = None,
    logits: Logits = PLAIN,
) -> list[dict[str, Any]]:
    """Train ``model`` in place on ``packs`` and write it to ``out_dir``, in float32.

    ``head`` ``[V, d]`` is the target's output matrix, of which it makes ``logits``. A training that was interrupted
    goes on where the state of ``run`` is. Returns the log, and writes it beside the checkpoint as ``training.json``:
    stage, step, and every pass's losses averaged over the steps since the entry before.
    """
    ahead = made_ahead(packs.device, run)
    batches = FeatureBatches(packs, recipe.mask_position, recipe.noise, recipe.seed, ahead=ahead)
    settings = asdict(recipe)
    step = GriffinStep(model, head, recipe, logits)
    log = fit(step, batches, recipe.stages(), replace(run or Run(), settings=settings))
    if is_first_process():
        write_checkpoint(out_dir, model.shape, model.state_dict(), torch.float32)
        write_record(out_dir, {"recipe": settings, "log": log})
    return log
