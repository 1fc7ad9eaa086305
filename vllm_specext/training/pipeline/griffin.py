"""GRIFFIN's part of a training: it reads the target's last hidden state."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from vllm_specext.methods.griffin.checkpoint import (
    EMBEDDING,
    GriffinShape,
    check_against_target,
    read_shape,
    read_tensors,
    write_checkpoint,
)
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.griffin import train as griffin
from vllm_specext.training.griffin.passes import simulate_chains
from vllm_specext.training.griffin.warm_start import warm_griffin_drafter
from vllm_specext.training.logits import Logits
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.pipeline.layer_sizes import layer_sizes
from vllm_specext.training.pipeline.method import Drafter, Sizes
from vllm_specext.training.pipeline.over_features import (
    as_trained,
    batch_bytes,
    end_bytes,
    operations_by_stage,
    packs_of,
)
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.pipeline.target_ends import TargetEnds
from vllm_specext.training.recipes.griffin import GriffinRecipe
from vllm_specext.training.rows import FeatureRow, RowSource
from vllm_specext.training.run import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class GriffinWithHead:
    model: GriffinDrafter
    head: Tensor
    """The target's, ``[V, d]``."""
    logits: Logits

    def draft(self, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
        device = self.head.device
        return simulate_chains(self.model, self.head, token_ids.to(device), states.to(device), length)

    def train(
        self, rows: RowSource, recipe: GriffinRecipe, steps: tuple[int, ...], processes: int, out: Path, run: Run
    ) -> None:
        packs = PackedBatches(rows, recipe.tokens_per_step, processes, self.head.device)
        how = as_trained(recipe, steps, griffin.GriffinTraining)
        griffin.train_griffin(self.model, self.head, packs, out, how, run, self.logits)


class GriffinMethod:
    title = "GRIFFIN"
    serves = "griffin"
    frozen = "embedding, head"
    captured = "the target's last hidden state"

    def layers(self, target: TargetModel) -> None:
        return None

    def sizes(self, target: TargetModel, recipe: GriffinRecipe) -> Sizes:
        shape = _shape(target, recipe)
        d, kv = shape.hidden_size, shape.kv_heads * shape.head_dim
        return Sizes(
            trained=_trained(shape),
            kept=16 * d + 2 * shape.tgf_size + 3 * shape.mlp_size + 2 * kv,
            frozen=end_bytes(target, recipe),
            batch=batch_bytes(target),
        )

    def operations(self, target: TargetModel, recipe: GriffinRecipe) -> tuple[float, ...]:
        return operations_by_stage(target, recipe, _trained(_shape(target, recipe)))

    def packs(self, rows: RowSource, recipe: GriffinRecipe) -> int:
        return packs_of(rows, recipe)

    def check_new(self, target: TargetModel, *, complete: bool) -> None:
        """One can."""

    def check_init(self, folder: Path, target: TargetModel) -> None:
        check_against_target(read_shape(folder), target.hidden_size, target.vocab_size)

    def kept(self, folder: Path, target: TargetModel) -> dict[str, Any]:
        return {"mlp_size": read_shape(folder).mlp_size}

    def begin(self, target: TargetModel, recipe: GriffinRecipe, init: Path | None, device: torch.device) -> Drafter:
        ends = TargetEnds(target)
        like = cast("PreTrainedModel", ends)  # all that is asked of it, it has
        if init is not None:
            model = warm_griffin_drafter(like, init, seed=recipe.seed)
        else:
            sizes = layer_sizes(target, recipe.mlp_size)
            model = griffin.new_griffin_drafter(like, **sizes._asdict(), seed=recipe.seed)
        return GriffinWithHead(model.to(device), ends.head.to(device), ends.logits.to(device))

    def read(self, folder: Path, target: TargetModel) -> GriffinDrafter:
        model = GriffinDrafter(read_shape(folder))
        model.load_state_dict(read_tensors(folder))
        return model

    def load(self, folder: Path, target: TargetModel, device: torch.device, *, bfloat16: bool = False) -> Drafter:
        ends = TargetEnds(target)
        return GriffinWithHead(self.read(folder, target).to(device), ends.head.to(device), ends.logits.to(device))

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, GriffinDrafter)
        write_checkpoint(folder, model.shape, model.state_dict(), torch.bfloat16)

    def states(self, row: FeatureRow) -> Tensor:
        return row.features


def _trained(shape: GriffinShape) -> int:
    return sum(math.prod(size) for name, size in shape.tensor_shapes().items() if name != EMBEDDING)


def _shape(target: TargetModel, recipe: GriffinRecipe) -> GriffinShape:
    """Of a new drafter, as far as its widths go."""
    sizes = layer_sizes(target, recipe.mlp_size)
    return GriffinShape(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        **sizes._asdict(),
        tgf_size=sizes.mlp_size,
        qkv_bias=False,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=target.max_length,
    )
