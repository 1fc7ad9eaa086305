"""EAGLE-3's part of a training: it reads the inputs of three of the target's layers, and learns from the last hidden
state."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.draft_vocabulary import read_file
from vllm_specext.training.eagle3.checkpoint import read_shape, read_tensors, write_checkpoint
from vllm_specext.training.eagle3.model import Eagle3Drafter, new_eagle3_drafter
from vllm_specext.training.eagle3.passes import simulate_chains
from vllm_specext.training.eagle3.shape import Eagle3Shape, layers_to_read
from vllm_specext.training.eagle3.train import Eagle3Training, train_eagle3
from vllm_specext.training.pipeline.chained import ChainedDrafter, Parts
from vllm_specext.training.pipeline.layer_sizes import layer_sizes
from vllm_specext.training.pipeline.method import Drafter, Sizes
from vllm_specext.training.pipeline.over_features import (
    batch_bytes,
    check_same,
    end_bytes,
    operations_by_stage,
    packs_of,
    scored_share,
)
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.pipeline.target_ends import TargetEnds, plain_numbers
from vllm_specext.training.recipes.eagle3 import Eagle3Recipe
from vllm_specext.training.rows import FeatureRow, RowSource

PARTS = Parts(simulate_chains, train_eagle3, Eagle3Training)


class Eagle3Method:
    title = "EAGLE-3"
    serves = "eagle3-tree"
    frozen = "embedding, head"
    captured = "the inputs of three of the target's layers, and its last hidden state"

    def layers(self, target: TargetModel) -> tuple[int, ...]:
        return layers_to_read(target.layers)

    def sizes(self, target: TargetModel, recipe: Eagle3Recipe) -> Sizes:
        if recipe.draft_vocab_file is not None:
            drafted_tokens(target, recipe)  # which refuses a wrong file before anything is made
        shape = _shape(target, recipe)
        d, q, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return Sizes(
            trained=_trained(shape),
            kept=12 * d + 2 * q + 2 * kv + 3 * shape.mlp_size,
            frozen=end_bytes(target, recipe) + 4 * recipe.most_passes * _own_head(shape),
            batch=batch_bytes(target, more=len(layers_to_read(target.layers))),
        )

    def operations(self, target: TargetModel, recipe: Eagle3Recipe) -> tuple[float, ...]:
        shape = _shape(target, recipe)
        first_matrix = math.prod(shape.parameters().required()["fc.weight"])
        own_head, scored = _own_head(shape), scored_share(recipe.align)
        return operations_by_stage(target, recipe, _trained(shape) - own_head, first_matrix, own_head, scored)

    def packs(self, rows: RowSource, recipe: Eagle3Recipe) -> int:
        return packs_of(rows, recipe)

    def check_new(self, target: TargetModel, *, complete: bool) -> None:
        """A new one can be begun for every target."""

    def check_init(self, folder: Path, target: TargetModel) -> None:
        shape = read_shape(folder, target.layers)
        wanted = {
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "layers": layers_to_read(target.layers),
        }
        check_same(folder, shape, wanted)

    def kept(self, folder: Path, target: TargetModel) -> dict[str, Any]:
        shape = read_shape(folder, target.layers)
        return {"mlp_size": shape.mlp_size, "draft_vocab_size": shape.draft_vocab_size, "draft_vocab_file": None}

    def begin(self, target: TargetModel, recipe: Eagle3Recipe, init: Path | None, device: torch.device) -> Drafter:
        ends = TargetEnds(target)
        if init is not None:
            model = self.read(init, target)
        else:
            shape = _shape(target, recipe)
            model = new_eagle3_drafter(shape, ends.norm, recipe.seed, ends.head, drafted_tokens(target, recipe))
        return ChainedDrafter.of(model, ends, device, PARTS)

    def read(self, folder: Path, target: TargetModel) -> Eagle3Drafter:
        model = Eagle3Drafter(read_shape(folder, target.layers))
        model.load_state_dict(read_tensors(folder))
        return model

    def load(self, folder: Path, target: TargetModel, device: torch.device, *, bfloat16: bool = False) -> Drafter:
        return ChainedDrafter.of(self.read(folder, target), TargetEnds(target), device, PARTS)

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Eagle3Drafter)
        write_checkpoint(folder, model.shape, model.state_dict(), torch.bfloat16)

    def states(self, row: FeatureRow) -> Tensor:
        assert row.aux is not None
        return row.aux


def drafted_tokens(target: TargetModel, recipe: Eagle3Recipe) -> list[int] | None:
    """The tokens that a new drafter's own output layer scores, ascending; ``None`` where it has none. Raises
    ``ConfigurationError``, which names the file or the recipe's key."""
    if recipe.draft_vocab_size is None:
        return None
    if recipe.draft_vocab_file is None:
        raise ConfigurationError(
            f"the recipe's key 'draft_vocab_size' is {recipe.draft_vocab_size}, but draft_vocab_file is null; the file "
            "says which tokens these are."
        )
    key = "the recipe's key 'draft_vocab_file'"
    ids = read_file(Path(recipe.draft_vocab_file).expanduser(), target.vocab_size, key)
    if recipe.draft_vocab_size > len(ids):
        raise ConfigurationError(
            f"the recipe's key 'draft_vocab_size' is {recipe.draft_vocab_size}, but {recipe.draft_vocab_file} has "
            f"{len(ids)} tokens; expected no more."
        )
    return sorted(ids[: recipe.draft_vocab_size])


def _own_head(shape: Eagle3Shape) -> int:
    return (shape.draft_vocab_size or 0) * shape.hidden_size


def _trained(shape: Eagle3Shape) -> int:
    own = replace(shape, draft_vocab_size=None).parameters().required()
    return sum(map(math.prod, own.values())) + _own_head(shape)


def _shape(target: TargetModel, recipe: Eagle3Recipe) -> Eagle3Shape:
    """Of a new drafter."""
    numbers = plain_numbers(target)
    return Eagle3Shape(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        **layer_sizes(target, recipe.mlp_size)._asdict(),
        rms_norm_eps=numbers.rms_norm_eps,
        rope_theta=numbers.rope_theta,
        max_position_embeddings=target.max_length,
        layers=layers_to_read(target.layers),
        draft_vocab_size=recipe.draft_vocab_size,
    )
