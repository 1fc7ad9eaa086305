"""One run: the drafter of a row, trained in short. Steps, rates, text and its order are the same for all rows."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.ablation.drafters import new_eagle3, new_griffin
from benchmarks.ablation.rows import Row
from vllm_specext.demo.training_text import LENGTH
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.batches import Batch, FeatureBatches
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.eagle3.train import Eagle3Step, Eagle3Training
from vllm_specext.training.griffin.train import GriffinStep, GriffinTraining
from vllm_specext.training.loop import fit
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.shard_rows import ShardRows
from vllm_specext.training.shards import Shard
from vllm_specext.training.step import Progress, Sums, TrainingStep

TOKENS = 4 * LENGTH
"""Of a pack."""
PACKS = 2
"""In a step, half of the bundled drafters': in short trainings steps are worth more than
tokens."""


class FewerPasses(TrainingStep[Batch]):
    """``step`` with at most so many passes in every stage."""

    def __init__(self, step: TrainingStep[Batch], most: int) -> None:
        super().__init__()
        self.step, self.model, self.most = step, step.model, most

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        sums: Sums = self.step(batch, replace(progress, stage=min(progress.stage, self.most)))
        return sums

    def weight(self, batch: Batch) -> Tensor:
        return self.step.weight(batch)


def recipe_of(row: Row, seed: int, steps: tuple[int, ...], rates: tuple[float, ...]) -> GriffinTraining:
    """Steps and rates of each stage are those of every row; EAGLE-3 takes nothing else from it."""
    return GriffinTraining(
        steps_per_stage=steps,
        learning_rates=rates,
        warmup_steps=20,
        optimizer="muon",
        feature_weight=row.feature_weight,
        mask_top_k=row.align,
        bfloat16=True,
        log_every=max(steps),
        seed=seed,
    )


def train(
    row: Row, target: LlamaForCausalLM, text: Shard, recipe: GriffinTraining, tokens: int = TOKENS
) -> tuple[GriffinDrafter | Eagle3Drafter, list[dict[str, Any]]]:
    """The trained drafter, and the log: an entry at the end of each stage. Weights, the order of the text and noise
    follow from the recipe's seed. ``tokens`` of each pack of a step."""
    model: GriffinDrafter | Eagle3Drafter
    if row.drafter == "griffin":
        model = new_griffin(row, target, recipe.seed)
        step: TrainingStep[Batch] = GriffinStep(model, target.lm_head.weight, recipe)
    else:
        model = new_eagle3(target, recipe.seed)
        embedding = target.get_input_embeddings().weight
        own = Eagle3Training(align=row.align, bfloat16=recipe.bfloat16)
        step = Eagle3Step(model, embedding, target.lm_head.weight, own)
    packs = PackedBatches(ShardRows([text], recipe.seed), tokens, PACKS)
    amplitude = recipe.noise if row.drafter == "griffin" else 0.0
    batches = FeatureBatches(packs, recipe.mask_position, amplitude, recipe.seed)
    torch.manual_seed(recipe.seed)
    return model, fit(FewerPasses(step, row.passes), batches, recipe.stages())
