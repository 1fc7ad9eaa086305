"""The part of multi-token prediction modules in a training: they read the target's last hidden state, and a target has
one before the training."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import check_names, positive, read_config, read_rotary, tensor_headers
from vllm_specext.methods.mtp.modules import TARGETS, tensor_names
from vllm_specext.methods.stock.checkpoint import weight_files
from vllm_specext.training.mtp.checkpoint import (
    KIND,
    as_in,
    file_shapes,
    locate,
    of_the_module,
    read_tensors,
    write_checkpoint,
)
from vllm_specext.training.mtp.experts import Experts, are_together
from vllm_specext.training.mtp.layouts import LAYOUTS, WITH_EXPERTS, Layout
from vllm_specext.training.mtp.model import ModuleShape, MtpModule
from vllm_specext.training.mtp.passes import simulate_chains
from vllm_specext.training.mtp.train import MtpTraining, train_mtp
from vllm_specext.training.pipeline.chained import ChainedDrafter, Parts
from vllm_specext.training.pipeline.method import Drafter, Sizes
from vllm_specext.training.pipeline.over_features import (
    batch_bytes,
    end_bytes,
    operations_by_stage,
    packs_of,
    scored_share,
)
from vllm_specext.training.pipeline.target import ROLE, TargetModel, target_files
from vllm_specext.training.pipeline.target_ends import TargetEnds, plain_numbers
from vllm_specext.training.recipes.mtp import MtpRecipe
from vllm_specext.training.rows import FeatureRow, RowSource

NOT_QUANTISED = "modules are trained for targets that are not quantised, as vLLM's classes read both alike"
QUANTISED = "hf_quant_config.json"
"""A file that says how a target is quantised."""
REFUSED = {
    "auto_map": "it names code, which is not run; MiMo's is read without it, in a copy whose model_type is 'qwen2'",
    "quantization_config": NOT_QUANTISED,
    "compression_config": NOT_QUANTISED,
}
"""Keys of a target's configuration, and why there is no training with them."""

PARTS = Parts(simulate_chains, train_mtp, MtpTraining)


class MtpMethod:
    title = "MTP"
    serves = "mtp-tree"
    frozen = "embedding, head"
    captured = "the target's last hidden state"

    def layers(self, target: TargetModel) -> None:
        return None

    def sizes(self, target: TargetModel, recipe: MtpRecipe) -> Sizes:
        shape = shape_of(target)
        d, q, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return Sizes(
            trained=_trained(shape),
            kept=13 * d + 5 * q + 2 * kv + 3 * shape.mlp_size + (shape.experts.kept(d) if shape.experts else 0),
            frozen=end_bytes(target, recipe),
            batch=batch_bytes(target),
        )

    def operations(self, target: TargetModel, recipe: MtpRecipe) -> tuple[float, ...]:
        shape = shape_of(target)
        idle = shape.experts.idle(shape.hidden_size) if shape.experts else 0
        return operations_by_stage(target, recipe, _trained(shape) - idle, scored=scored_share(recipe.align))

    def packs(self, rows: RowSource, recipe: MtpRecipe) -> int:
        return packs_of(rows, recipe)

    def check_new(self, target: TargetModel, *, complete: bool) -> None:
        shape = shape_of(target)
        names, layer = list(tensor_names(target.folder)), shape.layout.layer
        of_module = of_the_module(names, shape.layout)
        if names and not of_module:
            raise ConfigurationError(
                f"{ROLE} is {target.name!r}, which was saved without its multi-token prediction module (no name of its "
                f"tensors begins with {layer!r}); --init has to name a folder with one."
            )
        if names:
            check_names(target.folder, KIND, of_module, file_shapes(as_in(of_module, shape)))
        files = target_files(target.folder)
        if complete or {name for file in files for name in tensor_headers(file)} >= set(of_module) > set():
            locate(target.folder, files, shape)

    def check_init(self, folder: Path, target: TargetModel) -> None:
        locate(folder, weight_files(folder), shape_of(target))

    def kept(self, folder: Path, target: TargetModel) -> dict[str, Any]:
        return {}

    def begin(self, target: TargetModel, recipe: MtpRecipe, init: Path | None, device: torch.device) -> Drafter:
        """The target's own module, or that of ``init``."""
        if init is not None:
            return _with_ends(self.read(init, target), target, device)
        return _with_ends(_read(target.folder, target_files(target.folder), target), target, device)

    def read(self, folder: Path, target: TargetModel) -> MtpModule:
        return _read(folder, weight_files(folder), target)

    def load(self, folder: Path, target: TargetModel, device: torch.device, *, bfloat16: bool = False) -> Drafter:
        return _with_ends(self.read(folder, target), target, device)

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, MtpModule)
        write_checkpoint(folder, model.shape, model.state_dict(), torch.bfloat16)

    def states(self, row: FeatureRow) -> Tensor:
        return row.features


def shape_of(target: TargetModel) -> ModuleShape:
    """Of the target's module. Raises ``ConfigurationError`` where it has none that is trained here."""
    (architecture, *_) = target.config.get("architectures") or [None]
    if architecture not in LAYOUTS:
        raise ConfigurationError(
            f"{ROLE} is {target.name!r}, of the architecture {architecture!r}; modules are trained of "
            f"{', '.join(LAYOUTS)} alone."
        )
    modules = TARGETS[architecture]
    if (number := target.config.get(modules.key, modules.absent)) != 1:
        raise ConfigurationError(
            f"{ROLE} is {target.name!r}, whose {modules.key} is {number!r}; one module is trained, which is 1."
        )
    if target.config.get("hidden_act") not in (None, "silu"):
        raise ConfigurationError(
            f"{ROLE} is {target.name!r}, whose hidden_act is {target.config['hidden_act']!r}; expected 'silu'."
        )
    whole = read_config(target.folder)
    for key, why in REFUSED.items():
        if target.config.get(key):
            raise ConfigurationError(f"{ROLE} is {target.name!r}, whose config.json has {key}: {why}.")
    if (target.folder / QUANTISED).exists():
        raise ConfigurationError(f"{ROLE} is {target.name!r}, which has a file {QUANTISED}: {NOT_QUANTISED}.")
    layout = LAYOUTS[architecture]
    rope, rotary = target.config.get("rope_parameters") or {}, read_rotary(target.folder, target.config, ("default",))
    share = rope.get("partial_rotary_factor", target.config.get("partial_rotary_factor"))
    share = layout.share if share is None else share
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigurationError(
            f"{ROLE} is {target.name!r}, whose partial_rotary_factor is {share!r}; expected a number above 0 "
            "and at most 1."
        )
    return ModuleShape(
        layout=layout,
        hidden_size=target.hidden_size,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        mlp_size=target.intermediate_size,
        rms_norm_eps=plain_numbers(target).rms_norm_eps,
        rotary=replace(rotary, share=share),
        experts=_experts(target, layout) if architecture in WITH_EXPERTS else None,
        config=whole,
    )


def _experts(target: TargetModel, layout: Layout) -> Experts:
    """As the target's files have them."""
    try:
        whole = AutoConfig.from_pretrained(target.folder, trust_remote_code=False, experts_implementation="grouped_mm")
        config = whole.get_text_config()
    except Exception as error:  # whatever a wrong value leads to
        raise ConfigurationError(
            f"{target.folder / 'config.json'} is not a configuration that transformers reads: {type(error).__name__}."
        ) from error
    step, dense = target.config.get("decoder_sparse_step"), target.config.get("mlp_only_layers") or []
    if step not in (None, 1) or 0 in dense:
        raise ConfigurationError(
            f"{ROLE} is {target.name!r}, whose decoder_sparse_step is {step!r} and mlp_only_layers {dense!r}, so that "
            "vLLM's class has no experts in its module; of such targets none is trained."
        )
    of_module = of_the_module(tensor_names(target.folder), layout)
    count, chosen, width = (
        positive(target.folder, target.config, key, int)
        for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    )
    if chosen > count:
        raise ConfigurationError(
            f"{target.folder / 'config.json'}: num_experts_per_tok is {chosen}, but there are {count} experts."
        )
    return Experts(count, chosen, width, are_together(of_module), config)


def _trained(shape: ModuleShape) -> int:
    return sum(map(math.prod, file_shapes(shape).values()))


def _read(folder: Path, files: list[Path], target: TargetModel) -> MtpModule:
    model = MtpModule(shape_of(target))
    model.load_state_dict(read_tensors(folder, files, model.shape))
    return model


def _with_ends(model: MtpModule, target: TargetModel, device: torch.device) -> ChainedDrafter:
    return ChainedDrafter.of(model, TargetEnds(target), device, PARTS)
