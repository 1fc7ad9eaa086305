"""DFlash's and DSpark's part of a training: they read the outputs of five of the target's layers, and learn from the
last hidden state."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.block.checkpoint import read_shape, read_tensors, write_checkpoint
from vllm_specext.training.block.dflash import DFlashStep, DFlashTraining
from vllm_specext.training.block.dspark import DSparkStep, DSparkTraining
from vllm_specext.training.block.ends import Ends
from vllm_specext.training.block.layouts import DFLASH, DSPARK, Layout
from vllm_specext.training.block.models import BlockDrafter, TrainedDFlash, TrainedDSpark, drafter_of
from vllm_specext.training.block.shape import BlockDrafterShape, layers_to_read
from vllm_specext.training.block.simulation import simulate_dflash, simulate_dspark
from vllm_specext.training.block.train import train_blocks
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.pipeline.layer_sizes import layer_sizes
from vllm_specext.training.pipeline.mask_token import mask_token
from vllm_specext.training.pipeline.method import Drafter, Sizes
from vllm_specext.training.pipeline.over_features import (
    as_trained,
    batch_bytes,
    check_same,
    end_bytes,
    packs_of,
)
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.pipeline.target_ends import TargetEnds, plain_numbers
from vllm_specext.training.recipes.block import DFlashRecipe, DSparkRecipe
from vllm_specext.training.rows import FeatureRow, RowSource
from vllm_specext.training.run import Run


@dataclass(frozen=True)
class DrafterWithEnds:
    model: BlockDrafter
    ends: Ends

    def draft(self, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
        device = self.ends.head.device
        token_ids, states = token_ids.to(device), states.to(device)
        if isinstance(self.model, TrainedDSpark):
            return simulate_dspark(self.model, self.ends, token_ids, states, length)
        return simulate_dflash(self.model, self.ends, token_ids, states, length)

    def train(
        self, rows: RowSource, recipe: DFlashRecipe, steps: tuple[int, ...], processes: int, out: Path, run: Run
    ) -> None:
        packs = PackedBatches(rows, recipe.tokens_per_step, processes, self.ends.head.device)
        model, ends, shape = self.model, self.ends, self.model.shape
        step: DFlashStep | DSparkStep
        if isinstance(model, TrainedDSpark):
            step = DSparkStep(model, ends, shape.drafted, as_trained(recipe, steps, DSparkTraining))
        else:
            step = DFlashStep(model, ends, shape.drafted, as_trained(recipe, steps, DFlashTraining))
        train_blocks(step, shape, packs, out, run)


@dataclass(frozen=True)
class BlockMethod:
    layout: Layout
    serves: str
    frozen = "embedding, head"
    captured = "the outputs of five of the target's layers, and its last hidden state"

    @property
    def title(self) -> str:
        return self.layout.title

    def layers(self, target: TargetModel) -> tuple[int, ...]:
        return layers_to_read(target.layers)

    def sizes(self, target: TargetModel, recipe: DFlashRecipe) -> Sizes:
        shape = _shape(target, recipe)
        d, q, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        # In the type of the arithmetic; what norms give and residuals are is in float32, which takes two of it.
        of_row = shape.layers * (13 * d + 10 * (q + kv) + 4 * shape.mlp_size) + 4 * (d + (shape.markov_rank or 0))
        of_token = (len(shape.reads) + 2) * d + 2 * shape.layers * (d + kv)
        return Sizes(
            trained=_trained(shape),
            kept=round(_rows_of_token(recipe) * of_row) + of_token,
            # With the gradient of the Markov head's second table, which is made with the loss.
            frozen=end_bytes(target, recipe) + 4 * _table(shape),
            batch=batch_bytes(target, more=len(shape.reads) - 1),  # features to read are features to reproduce
        )

    def operations(self, target: TargetModel, recipe: DFlashRecipe) -> tuple[float, ...]:
        """For each row of a block 6 for every trained number but those that only the text passes, and logits: the
        target's and the drafter's, forward and back to the features, 6·V·d. For each token of text 6 for every number
        that it passes. Of the Markov head's two tables all of one are passed, and a row of the other."""
        shape = _shape(target, recipe)
        kv = 2 * shape.layers * shape.hidden_size * shape.kv_heads * shape.head_dim
        text = math.prod(shape.trained()["fc.weight"])
        of_row = 6.0 * (_trained(shape) - text - _table(shape)) + 6.0 * shape.vocab_size * shape.hidden_size
        return (_rows_of_token(recipe) * of_row + 6.0 * (text + kv),)

    def packs(self, rows: RowSource, recipe: DFlashRecipe) -> int:
        return packs_of(rows, recipe)

    def check_new(self, target: TargetModel, *, complete: bool) -> None:
        """One can."""

    def check_init(self, folder: Path, target: TargetModel) -> None:
        shape = read_shape(folder, self.layout)
        read = [layer - 1 for layer in layers_to_read(target.layers)]
        if (own := [layer - 1 for layer in shape.reads]) != read:
            raise ConfigurationError(
                f"--init is {str(folder)!r}, whose target_layer_ids are {own}, but for this target they are {read}; "
                "they must be equal."
            )
        check_same(folder, shape, {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size})

    def kept(self, folder: Path, target: TargetModel) -> dict[str, Any]:
        shape = read_shape(folder, self.layout)
        kept: dict[str, Any] = {"mlp_size": shape.mlp_size, "layers": shape.layers, "block_size": shape.block}
        kept["mask_token_id"] = shape.mask
        return kept if shape.markov_rank is None else {**kept, "markov_rank": shape.markov_rank}

    def begin(self, target: TargetModel, recipe: DFlashRecipe, init: Path | None, device: torch.device) -> Drafter:
        shape = _shape(target, recipe) if init is None else _as_asked(read_shape(init, self.layout), recipe)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            model = drafter_of(shape)
        if init is not None:
            # All but a confidence head that the recipe wants and the file has not, or the other way round.
            there = read_tensors(init)
            model.load_state_dict({name: there.get(name, new) for name, new in model.state_dict().items()})
        return self._with_ends(model, target, device)

    def read(self, folder: Path, target: TargetModel) -> BlockDrafter:
        model = drafter_of(read_shape(folder, self.layout))
        model.load_state_dict(read_tensors(folder))
        return model

    def load(self, folder: Path, target: TargetModel, device: torch.device, *, bfloat16: bool = False) -> Drafter:
        return self._with_ends(self.read(folder, target), target, device)

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, TrainedDFlash | TrainedDSpark)
        write_checkpoint(folder, model.shape, model.state_dict(), torch.bfloat16)

    def states(self, row: FeatureRow) -> Tensor:
        assert row.aux is not None
        return row.aux

    def _with_ends(self, model: BlockDrafter, target: TargetModel, device: torch.device) -> DrafterWithEnds:
        ends = TargetEnds(target)
        embedding = ends.get_input_embeddings().weight.detach().to(device)
        scale = ends.embedding_scale if self.layout.embeds_as_target else 1.0
        own = Ends(embedding, ends.head.to(device), model.shape.mask, scale, ends.logits.to(device))
        return DrafterWithEnds(model.to(device), own)


DFLASH_METHOD = BlockMethod(DFLASH, "dflash-tree")
DSPARK_METHOD = BlockMethod(DSPARK, "dspark-tree")


def _rows_of_token(recipe: DFlashRecipe) -> float:
    """Rows of blocks for each token of a pack, at the most."""
    return min(recipe.anchors, recipe.tokens_per_step) * recipe.block_size / recipe.tokens_per_step


def _trained(shape: BlockDrafterShape) -> int:
    return sum(map(math.prod, shape.trained().values()))


def _table(shape: BlockDrafterShape) -> int:
    """Numbers of each of the Markov head's two tables."""
    return shape.vocab_size * (shape.markov_rank or 0)


def _shape(target: TargetModel, recipe: DFlashRecipe) -> BlockDrafterShape:
    """Of a new drafter."""
    numbers = plain_numbers(target)
    shape = BlockDrafterShape(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        layers=recipe.layers,
        **layer_sizes(target, recipe.mlp_size)._asdict(),
        rms_norm_eps=numbers.rms_norm_eps,
        rope_theta=numbers.rope_theta,
        max_position_embeddings=target.max_length,
        target_layers=target.layers,
        reads=layers_to_read(target.layers),
        block=recipe.block_size,
        mask=mask_token(target, recipe),
    )
    return _as_asked(replace(shape, markov_rank=getattr(recipe, "markov_rank", None)), recipe)


def _as_asked(shape: BlockDrafterShape, recipe: DFlashRecipe) -> BlockDrafterShape:
    """With a confidence head where the ``recipe`` trains one."""
    return replace(shape, confidence=isinstance(recipe, DSparkRecipe) and recipe.confidence_weight > 0)
