"""Small targets with layers of Mamba-2, as Granite 4, Nemotron-H and Falcon-H1 have them, and a drafter for the first.

All have random weights. The drafter is a Granite whose layers all are attention, which its target has, too. What the
target's recurrent layers add is as much as makes the drafter wrong about every third token.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.engine.hybrid import ATTENTION, KEYS, PERIOD, SHARPNESS
from tests.engine.modules import OF_NEMOTRON, add_module
from tests.engine.workload import copy_tokenizer

COMMON = {key: KEYS[key] for key in KEYS if key not in ("rope_parameters", "head_dim")}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
KINDS = ["mamba"] * (PERIOD - 1) + ["attention"]
"""Every so many layers one is attention."""
GRANITES: dict[str, Any] = {
    "num_local_experts": 0,
    "shared_intermediate_size": KEYS["intermediate_size"],
    "attention_multiplier": KEYS["head_dim"] ** -0.5,
    "position_embedding_type": "rope",
    "mamba_expand": 1,
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_d_state": 24,
    "mamba_n_groups": 1,  # of several, vLLM's norm takes each alone, and transformers' all together
    "mamba_d_conv": 4,
    "mamba_chunk_size": 32,
}


def _layers(kinds: list[str]) -> dict[str, Any]:
    return {"layer_types": kinds * ATTENTION, "num_hidden_layers": len(kinds) * ATTENTION}


def make_granite(folder: Path, share: float = 0.001, **recurrent: int) -> tuple[Path, Path]:
    """Folders of a target and of a drafter for it. ``share``: how much the recurrent layers add; ``recurrent``: other
    sizes than theirs."""
    torch.manual_seed(0)
    drafter, target = (
        transformers.GraniteMoeHybridForCausalLM(
            transformers.GraniteMoeHybridConfig(**COMMON, **ROPE, **GRANITES | own)
        )
        for own in (_layers(["attention"]), _layers(KINDS) | recurrent)
    )
    with torch.no_grad():
        for model in (drafter, target):
            _draw(model.named_parameters())
        for place, layer in enumerate(target.model.layers):
            if layer.mamba is not None:
                layer.mamba.out_proj.weight.mul_(share)
                layer.shared_mlp.output_linear.weight.mul_(share)
                continue
            layer.load_state_dict(drafter.model.layers[place // PERIOD].state_dict())
        target.model.embed_tokens.weight.copy_(drafter.model.embed_tokens.weight)
        drafter.lm_head.weight.mul_(SHARPNESS)
        target.lm_head.weight.copy_(drafter.lm_head.weight)
    return _save(target, folder / "target"), _save(drafter, folder / "drafter")


def make_nemotron(folder: Path) -> Path:
    """With several groups of heads, and no bias of the convolution. vLLM runs no experts of this model on a CPU."""
    layers = ["mamba", "mlp", "mamba", "attention", "mamba", "mlp", "attention"]
    return _random(transformers.NemotronHForCausalLM(nemotron(layers)), folder)


def make_nemotron_with_module(folder: Path) -> Path:
    """The same with a module of two layers, which are attention, as that of a released one is attention and experts."""
    make_nemotron(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.num_nextn_predict_layers, config.mtp_layers_block_type = 1, ["full_attention"] * 2
    config.save_pretrained(folder)
    add_module(folder, OF_NEMOTRON, nemotron(["attention"] * 2))
    return folder


def nemotron(layers: list[str]) -> Any:
    return transformers.NemotronHConfig(
        **COMMON,
        head_dim=KEYS["head_dim"],
        layers_block_type=layers,
        mamba_num_heads=8,
        mamba_head_dim=32,
        ssm_state_size=24,
        n_groups=4,
        conv_kernel=4,
        use_conv_bias=False,
        chunk_size=32,
    )


def make_falcon(folder: Path) -> Path:
    """With attention beside the recurrent part of each layer."""
    config = transformers.FalconH1Config(
        **COMMON,
        **ROPE,
        num_hidden_layers=4,
        mamba_d_ssm=256,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=24,
        mamba_n_groups=1,
        mamba_d_conv=4,
        mamba_chunk_size=32,
    )
    return _random(transformers.FalconH1ForCausalLM(config), folder)


def _random(model: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    with torch.no_grad():
        _draw(model.named_parameters())
        model.lm_head.weight.mul_(SHARPNESS)
    return _save(model, folder)


def _draw(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    for name, weight in parameters:
        if weight.ndim > 1:
            weight.normal_(0, 0.5 if "conv1d" in name else 0.08)
        elif name.endswith("A_log"):
            weight.uniform_(-3, 0)
        elif name.endswith(("dt_bias", "conv1d.bias", ".D")):
            weight.normal_()


def _save(model: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(folder)
    model.float().save_pretrained(folder)
    return folder
