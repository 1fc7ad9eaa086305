"""A multi-token prediction module in the layout of Qwen3-Next and Qwen3.5, of random weights, and the same out of
transformers' parts."""

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.test_tree_drafting import Drafter
from vllm_specext.methods.layers import KV, extend

LAYER = "model.layers.0."
PREFIX = "mtp."


def one_layer(target: Path) -> Any:
    """The target's configuration with a single layer, which is attention, as the module is one."""
    config = transformers.AutoConfig.from_pretrained(target).get_text_config()
    own = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_only_layers": []}
    return type(config).from_dict(config.to_dict() | own)


def add_module(folder: Path) -> None:
    """Add one to the target in ``folder``, whose weights are one file."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(one_layer(folder))
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.08)
    with tempfile.TemporaryDirectory() as saved:  # whose names of experts are those of released checkpoints
        model.save_pretrained(saved)
        own = load_file(Path(saved) / "model.safetensors")
    tensors = load_file(folder / "model.safetensors")
    d = model.config.hidden_size
    tensors |= {
        PREFIX + name.replace(LAYER, "layers.0."): weight for name, weight in own.items() if name.startswith(LAYER)
    }
    tensors |= {
        PREFIX + "norm.weight": own["model.norm.weight"],
        PREFIX + "fc.weight": torch.randn(d, 2 * d) * 0.06,
        PREFIX + "pre_fc_norm_embedding.weight": torch.randn(d) * 0.1,
        PREFIX + "pre_fc_norm_hidden.weight": torch.randn(d) * 0.1,
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class Kept:
    """Keys and values as transformers asks for them."""

    def __init__(self, past: KV | None) -> None:
        self.kv = past

    def update(self, keys: Tensor, values: Tensor, layer: int) -> KV:
        self.kv = extend(self.kv, (keys, values))
        return self.kv


def module(folder: Path) -> Drafter:
    """The module of ``folder``, out of transformers' layer."""
    config = one_layer(folder)
    config._attn_implementation = "eager"
    model: Any = transformers.AutoModelForCausalLM.from_config(config).model
    tensors = load_file(folder / "model.safetensors")
    own = {name.removeprefix(PREFIX): weight for name, weight in tensors.items() if name.startswith(PREFIX)}
    (embedding,) = (weight for name, weight in tensors.items() if name.endswith("embed_tokens.weight"))
    layer = model.layers[0]
    of_layer = {name.removeprefix("layers.0."): x for name, x in own.items() if name.startswith("layers.0.")}
    layer.load_state_dict(_fused(of_layer))

    def norm(x: Tensor, name: str) -> Tensor:
        model.norm.weight.data = own[f"{name}.weight"]
        made: Tensor = model.norm(x)
        return made

    def run(ids: Tensor, features: Tensor, places: Tensor, mask: Tensor, past: KV | None) -> tuple[Tensor, Tensor, KV]:
        fused = torch.cat((norm(embedding[ids], "pre_fc_norm_embedding"), norm(features, "pre_fc_norm_hidden")), dim=-1)
        hidden = fused @ own["fc.weight"].T
        kept = Kept(past)
        made = layer(
            hidden,
            position_embeddings=model.rotary_emb(hidden, places),
            attention_mask=torch.zeros(mask.shape).masked_fill(~mask, float("-inf")),
            past_key_values=kept,
        )
        made = norm(made[0] if isinstance(made, tuple) else made, "norm")
        assert kept.kv is not None
        return made, made, kept.kv

    return run


def _fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the experts together, as transformers' layer has them."""
    numbers = sorted({int(name.split(".")[2]) for name in tensors if name.startswith("mlp.experts.")})
    if not numbers:
        return tensors
    gates, ups, downs = (
        [tensors.pop(f"mlp.experts.{number}.{kind}_proj.weight") for number in numbers]
        for kind in ("gate", "up", "down")
    )
    both = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
    return tensors | {"mlp.experts.gate_up_proj": torch.stack(both), "mlp.experts.down_proj": torch.stack(downs)}
