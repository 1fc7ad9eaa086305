"""DFlash's part of a training: it reads the outputs of five of the target's layers, and learns from the last hidden
state."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.model import DFlashDrafter
from vllm_specext.training.dflash import train as dflash
from vllm_specext.training.dflash.checkpoint import read_shape, read_tensors, write_checkpoint
from vllm_specext.training.dflash.shape import DFlashShape, layers_to_read
from vllm_specext.training.dflash.train import Ends, simulate_blocks
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.pipeline.layer_sizes import layer_sizes
from vllm_specext.training.pipeline.method import Drafter, Sizes
from vllm_specext.training.pipeline.over_features import (
    LEARNT,
    as_trained,
    batch_bytes,
    check_same,
    end_bytes,
    packs_of,
)
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.pipeline.target_ends import TargetEnds, plain_numbers
from vllm_specext.training.recipes.dflash import DFlashRecipe
from vllm_specext.training.rows import FeatureRow, RowSource
from vllm_specext.training.run import Run


class TrainedDFlash(DFlashDrafter):
    """A drafter that knows what its checkpoint says of it."""

    def __init__(self, shape: DFlashShape) -> None:
        super().__init__(shape.sizes())
        self.shape = shape


@dataclass(frozen=True)
class DFlashWithEnds:
    model: TrainedDFlash
    ends: Ends

    def draft(self, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
        device = self.ends.head.device
        return simulate_blocks(self.model, self.ends, token_ids.to(device), states.to(device), length)

    def train(
        self, rows: RowSource, recipe: DFlashRecipe, steps: tuple[int, ...], processes: int, out: Path, run: Run
    ) -> None:
        packs = PackedBatches(rows, recipe.tokens_per_step, processes, self.ends.head.device)
        how = as_trained(recipe, steps, dflash.DFlashTraining)
        dflash.train_dflash(self.model, self.model.shape, self.ends, packs, out, how, run)


class DFlashMethod:
    title = "DFlash"
    serves = "dflash-tree"
    frozen = "embedding, head"
    captured = "the outputs of five of the target's layers, and its last hidden state"

    def layers(self, target: TargetModel) -> tuple[int, ...]:
        return layers_to_read(target.layers)

    def sizes(self, target: TargetModel, recipe: DFlashRecipe) -> Sizes:
        shape = _shape(target, recipe)
        d, q, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        # In the type of the arithmetic; what norms give and residuals are is in float32, which takes two of it.
        of_row = shape.layers * (13 * d + 10 * (q + kv) + 4 * shape.mlp_size) + 4 * d
        of_token = (len(shape.reads) + 2) * d + 2 * shape.layers * (d + kv)
        return Sizes(
            trained=_trained(shape),
            kept=round(_rows_of_token(recipe) * of_row) + of_token,
            frozen=end_bytes(target, recipe),
            batch=batch_bytes(target, more=len(shape.reads) - 1),  # features to read are features to reproduce
        )

    def operations(self, target: TargetModel, recipe: DFlashRecipe) -> tuple[float, ...]:
        """For each row of a block 6 for every trained number but those that only the text passes, and logits: the
        target's and the drafter's, forward and back to the features, 6·V·d. For each token of text 6 for every number
        that it passes."""
        shape = _shape(target, recipe)
        kv = 2 * shape.layers * shape.hidden_size * shape.kv_heads * shape.head_dim
        text = math.prod(shape.parameters().required()["fc.weight"])
        of_row = 6.0 * (_trained(shape) - text) + 6.0 * shape.vocab_size * shape.hidden_size
        return ((_rows_of_token(recipe) * of_row + 6.0 * (text + kv)) / LEARNT,)

    def packs(self, rows: RowSource, recipe: DFlashRecipe) -> int:
        return packs_of(rows, recipe)

    def check_init(self, folder: Path, target: TargetModel) -> None:
        shape = read_shape(folder)
        read = [layer - 1 for layer in layers_to_read(target.layers)]
        if (own := [layer - 1 for layer in shape.reads]) != read:
            raise ConfigurationError(
                f"--init is {str(folder)!r}, whose target_layer_ids are {own}, but for this target they are {read}; "
                "they must be equal."
            )
        check_same(folder, shape, {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size})

    def kept(self, folder: Path, target: TargetModel) -> dict[str, Any]:
        shape = read_shape(folder)
        sizes = {"mlp_size": shape.mlp_size, "layers": shape.layers}
        return {**sizes, "block_size": shape.block, "mask_token_id": shape.mask}

    def begin(self, target: TargetModel, recipe: DFlashRecipe, init: Path | None, device: torch.device) -> Drafter:
        if init is not None:
            return _with_ends(self.read(init, target), target, device)
        shape = _shape(target, recipe)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            model = TrainedDFlash(shape)
        return _with_ends(model, target, device)

    def read(self, folder: Path, target: TargetModel) -> TrainedDFlash:
        model = TrainedDFlash(read_shape(folder))
        model.load_state_dict(read_tensors(folder))
        return model

    def load(self, folder: Path, target: TargetModel, device: torch.device, *, bfloat16: bool = False) -> Drafter:
        return _with_ends(self.read(folder, target), target, device)

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, TrainedDFlash)
        write_checkpoint(folder, model.shape, model.state_dict(), torch.bfloat16)

    def states(self, row: FeatureRow) -> Tensor:
        assert row.aux is not None
        return row.aux


def mask_token(target: TargetModel, recipe: DFlashRecipe) -> int:
    """The recipe's, or a token that texts do not have: the first that only the embedding knows, the padding, or one
    that the tokenizer has in reserve. Raises ``ConfigurationError`` where there is none."""
    asked = recipe.mask_token_id
    if asked is not None:
        if asked >= target.vocab_size:
            raise ConfigurationError(
                f"the recipe's key 'mask_token_id' is {asked}, but the target has {target.vocab_size} tokens; a lower "
                "number is needed."
            )
        return asked
    tokenizer = AutoTokenizer.from_pretrained(target.folder)
    known = tokenizer.get_vocab()
    if (above := max(known.values()) + 1) < target.vocab_size:
        return above
    if tokenizer.pad_token_id is not None:
        return int(tokenizer.pad_token_id)
    reserved = [number for number, token in tokenizer.added_tokens_decoder.items() if "reserved" in str(token)]
    if not reserved:
        raise ConfigurationError(
            "the target's tokenizer has a text for every token, and no padding; the recipe's key 'mask_token_id' has "
            "to name a token that texts do not have."
        )
    return min(reserved)


def _with_ends(model: TrainedDFlash, target: TargetModel, device: torch.device) -> DFlashWithEnds:
    ends = TargetEnds(target)
    embedding = ends.get_input_embeddings().weight.detach()
    own = Ends(embedding.to(device), ends.head.to(device), model.shape.mask, ends.embedding_scale, ends.logits)
    return DFlashWithEnds(model.to(device), own)


def _rows_of_token(recipe: DFlashRecipe) -> float:
    """Rows of blocks for each token of a pack, at the most."""
    return min(recipe.anchors, recipe.tokens_per_step) * recipe.block_size / recipe.tokens_per_step


def _trained(shape: DFlashShape) -> int:
    return sum(map(math.prod, shape.parameters().required().values()))


def _shape(target: TargetModel, recipe: DFlashRecipe) -> DFlashShape:
    """Of a new drafter."""
    numbers = plain_numbers(target)
    return DFlashShape(
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
