"""Multi-token prediction modules in the layouts of released targets, of random weights, and the same out of
transformers' parts.

A module is one decoder layer or several, which are transformers' own, with a projection before them and norms around
them. They are saved as a model in the folder ``MODULE`` of the target, whose file has the same weights by other names.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specext.methods.layers import KV, extend

MODULE = "module"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Layout:
    """Names of a module's tensors, and what differs between modules."""

    layer: str
    """With which the names of its layer's tensors begin; before a number and a dot where there may be several."""
    projection: str
    of_embedding: str
    of_hidden: str
    last: str | None
    """The norm after the layer."""
    norm_belongs_to_head: bool = False
    """Whether the module gives the head what the last norm is given, and goes on from there."""
    goes_on_after_norm: bool = False
    """Whether it goes on from what the last norm gives nevertheless."""
    sees_first_token: bool = True
    """Whether the embedding at position 0 is read, which has no hidden state before it."""
    saved: str = "model.layers.0."
    """With which they begin in a model of these layers alone, as transformers saves it."""

    def norms(self) -> list[str]:
        return [name for name in (self.of_embedding, self.of_hidden, self.last) if name]


OF_QWEN = Layout("mtp.layers.0.", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
"""Of Qwen3-Next, Qwen3.5 and K-EXAONE."""
OF_NEMOTRON = Layout(
    layer="mtp.layers.",
    projection="mtp.layers.0.eh_proj",
    of_embedding="mtp.layers.0.enorm",
    of_hidden="mtp.layers.0.hnorm",
    last="mtp.layers.1.final_layernorm",
    saved="backbone.layers.",
)
"""With two layers."""
OF_ERNIE = Layout(
    layer="model.mtp_block.0.",
    projection="model.mtp_linear_proj.0",
    of_embedding="model.mtp_emb_norm.0",
    of_hidden="model.mtp_hidden_norm.0",
    last=None,
    sees_first_token=False,
)


def of_glm(layers: int) -> Layout:
    """Of GLM 4.5, which has so many ``layers`` before the module."""
    return replace(of_hy(layers), last=f"model.layers.{layers}.shared_head.norm", norm_belongs_to_head=True)


def of_deepseek(layers: int) -> Layout:
    """Of DeepSeek V3, the same."""
    return replace(of_glm(layers), goes_on_after_norm=True)


def of_hy(layers: int) -> Layout:
    """Of Hy 3, the same."""
    layer = f"model.layers.{layers}."
    names = ("eh_proj", "enorm", "hnorm", "final_layernorm")
    projection, of_embedding, of_hidden, last = (layer + name for name in names)
    return Layout(layer, projection, of_embedding, of_hidden, last, sees_first_token=False)


def last_norm(model: Any) -> Any:
    """Of a model of transformers, which names it in two ways."""
    return model.norm_f if hasattr(model, "norm_f") else model.norm


def add_module(folder: Path, layout: Layout, layer: Any) -> None:
    """Add one to the target in ``folder``, whose weights are one file. ``layer`` is the configuration of a model that
    has the module's layers alone."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(layer)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1) if "norm" in name else weight.normal_(0, 0.08)
        model.save_pretrained(folder / MODULE)  # whose names of experts are those of released checkpoints
        own = load_file(folder / MODULE / WEIGHTS)
        d, norm = layer.hidden_size, last_norm(model.model)
        made = {layout.projection: torch.randn(d, 2 * d) * 0.06}
        made |= {name: norm.weight + 0.1 * torch.randn(d) for name in layout.norms()}
    tensors = load_file(folder / WEIGHTS)
    tensors |= {
        name.replace(layout.saved, layout.layer): each for name, each in own.items() if name.startswith(layout.saved)
    }
    tensors |= {f"{name}.weight": each for name, each in made.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def replace_module(folder: Path, layout: Layout, tensors: dict[str, Tensor]) -> None:
    """Give the target in ``folder``, to which a module was added, another one with these ``tensors``."""
    save_file(load_file(folder / WEIGHTS) | tensors, folder / WEIGHTS)
    own = {
        name.replace(layout.layer, layout.saved): each
        for name, each in tensors.items()
        if name.startswith(layout.layer)
    }
    save_file(load_file(folder / MODULE / WEIGHTS) | own, folder / MODULE / WEIGHTS, metadata={"format": "pt"})


class Kept:
    """Keys and values of a layer as transformers asks for them."""

    def __init__(self, past: KV | None) -> None:
        self.kv = past

    def update(self, keys: Tensor, values: Tensor, layer: int) -> KV:
        self.kv = extend(self.kv, (keys, values))
        return self.kv


class Module:
    """The module that ``add_module`` has added to ``folder``, out of transformers' layers."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        path, how = folder / MODULE, {"attn_implementation": "eager", "dtype": torch.float32}
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, **how).model
        self.tensors, self.layout = load_file(folder / WEIGHTS), layout
        names = ("embed_tokens.weight", "embeddings.weight")
        (self.embedding,) = (x for name, x in self.tensors.items() if name.endswith(names))

    def norm(self, x: Tensor, name: str) -> Tensor:
        norm = last_norm(self.model)
        norm.weight.data = self.tensors[f"{name}.weight"]
        made: Tensor = norm(x)
        return made

    def logits(self, features: Tensor) -> Tensor:
        """Of what the module gives."""
        if self.layout.last and self.layout.norm_belongs_to_head:
            features = self.norm(features, self.layout.last)
        return features @ self.tensors["lm_head.weight"].T

    def __call__(
        self, ids: Tensor, features: Tensor, places: Tensor, mask: Tensor, past: KV | None
    ) -> tuple[Tensor, Tensor, KV]:
        """As a ``Drafter``; keys and values are those of all layers, one layer's heads after the other's."""
        layout, tokens = self.layout, self.embedding[ids]
        if not layout.sees_first_token:
            tokens = torch.where(places[..., None] == 0, 0, tokens)
        fused = torch.cat((self.norm(tokens, layout.of_embedding), self.norm(features, layout.of_hidden)), dim=-1)
        made = fused @ self.tensors[f"{layout.projection}.weight"].T
        given = {
            "position_embeddings": self.model.rotary_emb(made, places) if hasattr(self.model, "rotary_emb") else None,
            "attention_mask": torch.zeros(mask.shape).masked_fill(~mask, float("-inf")),
        }
        layers = len(self.model.layers)
        each_past: list[Any] = (
            [None] * layers if past is None else list(zip(*(kv.chunk(layers, 1) for kv in past), strict=True))
        )
        kept = [Kept(own) for own in each_past]
        for layer, own in zip(self.model.layers, kept, strict=True):
            made = layer(made, **given, past_key_values=own)
            made = made[0] if isinstance(made, tuple) else made
        if layout.last and not layout.norm_belongs_to_head:
            made = self.norm(made, layout.last)
        keys, values = zip(*(own.kv for own in kept if own.kv), strict=True)
        following = self.norm(made, layout.last) if layout.last and layout.goes_on_after_norm else made
        return made, following, (torch.cat(keys, dim=1), torch.cat(values, dim=1))
