"""A drafter in a training that reads its own features in later passes, with the target's embedding and head."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vllm_specext.training.chained import ChainedTraining
from vllm_specext.training.logits import Logits
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.pipeline.over_features import as_trained
from vllm_specext.training.pipeline.target_ends import TargetEnds
from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.rows import RowSource
from vllm_specext.training.run import Run


@dataclass(frozen=True)
class Parts:
    """A method's own."""

    simulate: Callable[[Any, Tensor, Tensor, Tensor, Tensor, int], Tensor]
    """Greedy chains of a model, with embedding and head, after token ids, with states, of a length."""
    train: Callable[..., Any]
    """Of a model, with embedding and head, on packs, into a folder, with a recipe, in a run, with the target's way to
    make logits."""
    recipe: type[ChainedTraining]


@dataclass(frozen=True)
class ChainedDrafter:
    model: nn.Module
    embedding: Tensor
    head: Tensor
    """The target's, both ``[V, d]``."""
    logits: Logits
    parts: Parts

    @classmethod
    def of(cls, model: nn.Module, ends: TargetEnds, device: torch.device, parts: Parts) -> "ChainedDrafter":
        embedding = ends.get_input_embeddings().weight.detach()
        return cls(model.to(device), embedding.to(device), ends.head.to(device), ends.logits.to(device), parts)

    def draft(self, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
        device = self.head.device
        ids, read = token_ids.to(device), states.to(device)
        return self.parts.simulate(self.model, self.embedding, self.head, ids, read, length)

    def train(
        self, rows: RowSource, recipe: StagedKeys, steps: tuple[int, ...], processes: int, out: Path, run: Run
    ) -> None:
        packs = PackedBatches(rows, recipe.tokens_per_step, processes, self.head.device)
        how = as_trained(recipe, steps, self.parts.recipe)
        self.parts.train(self.model, self.embedding, self.head, packs, out, how, run, self.logits)
