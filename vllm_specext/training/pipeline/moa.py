"""MoA's part of a training: the target runs beside the drafter, frozen, because its keys and values in all layers would
be too many to keep."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.moa import checkpoint
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.methods.moa.target_layers import TargetLayers
from vllm_specext.training.logits import Logits, logits_of
from vllm_specext.training.moa import train as moa
from vllm_specext.training.moa.chains import simulate_moa_chains
from vllm_specext.training.moa.target import TargetStateReader, last_target_layers, target_states
from vllm_specext.training.moa.untrained import new_moa_drafter
from vllm_specext.training.pipeline import moa_plan
from vllm_specext.training.pipeline.method import Drafter, Sizes, warmup_steps
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.recipes.moa import MoARecipe
from vllm_specext.training.rows import FeatureRow, RowSource
from vllm_specext.training.run import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class MoAWithTarget:
    model: MoADrafter
    target: "PreTrainedModel"
    last_layers: TargetLayers | None
    logits: Logits

    def draft(self, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
        # What is read of a position is its token; the target makes the rest of it.
        device = self.head.device
        text = torch.cat((states[:, :1, 0].long(), token_ids), dim=1).to(device)
        used = self.model.shape.target_layer_inference
        embedding = self.target.get_input_embeddings().weight
        with torch.autocast(device.type, torch.bfloat16, enabled=self.head.dtype is torch.bfloat16):
            seen = target_states(self.target, text, torch.ones_like(text, dtype=torch.bool), used)
            return simulate_moa_chains(self.model, embedding, self.head, self.last_layers, seen, length)

    def train(
        self, rows: RowSource, recipe: MoARecipe, steps: tuple[int, ...], processes: int, out: Path, run: Run
    ) -> None:
        texts = rows.read(range(len(rows.lengths)))
        reader = TargetStateReader(
            self.target,
            [row.token_ids for row in texts],
            rows_of_pack(rows, recipe) * processes,
            recipe.seed,
            self.model.shape.target_layer_inference,
            # A position's output predicts the token after it.
            learnt=[torch.nn.functional.pad(row.loss_mask[1:], (0, 1)) for row in texts],
            bfloat16=recipe.bfloat16,
        )
        how = as_trained(recipe, steps)
        moa.train_moa(self.model, self.head, self.last_layers, reader, out, how, run, self.logits)

    @property
    def head(self) -> Tensor:
        """``[V, E]``"""
        head: Tensor = self.target.get_output_embeddings().weight
        return head


class MoAMethod:
    title = "MoA"
    serves = "moa"
    captured = None
    frozen = "target"

    def layers(self, target: TargetModel) -> None:
        return None

    def sizes(self, target: TargetModel, recipe: MoARecipe) -> Sizes:
        return moa_plan.sizes(target, recipe)

    def operations(self, target: TargetModel, recipe: MoARecipe) -> tuple[float, ...]:
        return moa_plan.operations(target, recipe)

    def packs(self, rows: RowSource, recipe: MoARecipe) -> int:
        return math.ceil(len(rows.lengths) / rows_of_pack(rows, recipe))

    def check_new(self, target: TargetModel, *, complete: bool) -> None:
        """One can."""

    def check_init(self, folder: Path, target: TargetModel) -> None:
        kv_width = moa_plan.kv_width(target)
        sizes = checkpoint.TargetSizes(target.hidden_size, target.vocab_size, target.layers, kv_width)
        checkpoint.check_against_target(checkpoint.read_shape(folder), sizes)

    def kept(self, folder: Path, target: TargetModel) -> dict[str, Any]:
        shape = checkpoint.read_shape(folder)
        across = shape.layer_self_attention
        keys = {"lsa": across is not None, "lsa_mlp_size": across and across.mlp_size}
        inference = {"target_layer_inference": shape.target_layer_inference}
        return {"mlp_size": shape.self_attention.mlp_size, **keys, **inference}

    def begin(self, target: TargetModel, recipe: MoARecipe, init: Path | None, device: torch.device) -> Drafter:
        frozen = _frozen(target, recipe.bfloat16, device)
        if init is not None:
            return _with_target(self.read(init, target), target, frozen, device)
        widths = moa_plan.shape(target, recipe)
        model = new_moa_drafter(
            frozen,
            mlp_size=widths.self_attention.mlp_size,
            kv_heads=target.kv_heads,
            lsa_mlp_size=moa_plan.lsa_mlp_size(target, recipe),
            lsa_kv_heads=target.kv_heads,
            with_lsa=recipe.lsa,
            target_layer_inference=recipe.target_layer_inference,
            seed=recipe.seed,
        )
        return _with_target(model, target, frozen, device)

    def read(self, folder: Path, target: TargetModel) -> MoADrafter:
        model = MoADrafter(checkpoint.read_shape(folder))
        model.load_state_dict(checkpoint.read_tensors(folder))
        return model

    def load(self, folder: Path, target: TargetModel, device: torch.device, *, bfloat16: bool = False) -> Drafter:
        return _with_target(self.read(folder, target), target, _frozen(target, bfloat16, device), device)

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, MoADrafter)
        checkpoint.write_checkpoint(folder, model.shape, model.state_dict(), torch.bfloat16)

    def states(self, row: FeatureRow) -> Tensor:
        return row.token_ids[:, None]


def rows_of_pack(rows: RowSource, recipe: MoARecipe) -> int:
    return max(1, recipe.tokens_per_step // max(rows.lengths))


def as_trained(recipe: MoARecipe, steps: tuple[int, ...]) -> moa.MoATraining:
    """The recipe as the trainer has it."""
    same = ("final_learning_rate", "weight_decay", "clip_norm", "optimizer", "muon_factor", "drafted", "staircase")
    others = ("count_boundaries", "bfloat16", "log_every", "seed")
    return moa.MoATraining(
        steps=steps[0],
        learning_rate=recipe.learning_rates[0],
        warmup_steps=warmup_steps(recipe, steps),
        decay_steps=recipe.schedule_steps or steps[0],
        **{name: getattr(recipe, name) for name in same + others},
    )


def _with_target(
    model: MoADrafter, target: TargetModel, frozen: "PreTrainedModel", device: torch.device
) -> MoAWithTarget:
    used = model.shape.target_layer_inference
    last_layers = last_target_layers(frozen, used) if used else None
    return MoAWithTarget(model.to(device), frozen, last_layers, logits_of(target.config))


def _frozen(target: TargetModel, bfloat16: bool, device: torch.device) -> "PreTrainedModel":
    """In float32, or in ``bfloat16``, where that is the type of the arithmetic: every step would make as much of the
    weights in float32."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if bfloat16 else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(target.folder, dtype=dtype)
    except (ValueError, OSError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise ConfigurationError(f"--target is {target.name!r}, which transformers cannot load: {why}.") from None
    frozen: PreTrainedModel = model.eval().requires_grad_(False).to(device)
    return frozen
