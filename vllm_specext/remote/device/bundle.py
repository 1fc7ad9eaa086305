"""What a client needs on its own machine, in one folder: the drafter without what only the server computes, the
target's embedding and output layer, and its tokenizer.

``bundle.json`` says what they are. The weights are ``model.safetensors``; nothing in the folder is executed.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import (
    SAFETENSORS,
    Shapes,
    check_names,
    check_shapes,
    check_sizes,
    load_tensors,
    read_object,
    tensor_shapes,
)
from vllm_specext.methods.layers import RopeScaling, Rotary
from vllm_specext.methods.moa.checkpoint import CA, SA, LayerShape
from vllm_specext.methods.moa.model import DecoderLayer
from vllm_specext.remote.device.moa_drafter import ClientModel, MoAClientDrafter
from vllm_specext.remote.protocol import MAX_NODES
from vllm_specext.tree.budget import TreeShape

CONFIG = "bundle.json"
EMBEDDING, HEAD = "embedding.weight", "head.weight"
QUERIES = f"{SA}.self_attn.q_proj.weight"
SERVERS = tuple(f"{CA}.self_attn.{one}_proj.weight" for one in "kv")
"""Of the drafter's two layers, what only the server needs."""

Size = Annotated[int, Field(ge=1, le=1 << 24)]


class Bundle(BaseModel):
    """``bundle.json``"""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: Literal[1] = 1
    target: str
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    vocab_size: Size
    self_attention: LayerShape
    cross_attention: LayerShape
    rms_norm_eps: float = Field(gt=0)
    rope_theta: float = Field(gt=0)
    rope_scaling: RopeScaling | None
    ends: list[Annotated[int, Field(ge=0)]] = Field(max_length=64)
    """Tokens that end an answer."""
    tied: bool
    """The output layer is the embedding."""
    nodes: int = Field(ge=1, le=MAX_NODES)
    depth: int = Field(ge=1, le=32)
    top_k: int = Field(ge=2, le=64)

    def tensor_shapes(self) -> Shapes:
        layers = self.self_attention.tensor_shapes(SA) | self.cross_attention.tensor_shapes(CA)
        ends = dict.fromkeys([EMBEDDING] if self.tied else [EMBEDDING, HEAD], (self.vocab_size, layers[QUERIES][1]))
        return {name: size for name, size in layers.items() if name not in SERVERS} | ends

    @property
    def row_heads(self) -> tuple[int, int]:
        """Heads of a row, and their size."""
        return self.cross_attention.kv_heads, self.cross_attention.head_dim


def read(folder: Path) -> Bundle:
    """Raises ``ConfigurationError`` where the folder is no bundle, or its weights are others than it says."""
    path = folder / CONFIG
    if not path.is_file():
        raise ConfigurationError(f"{folder} is no bundle: it has no {CONFIG}.")
    try:
        bundle = Bundle.model_validate_json(json.dumps(read_object(path)))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    found = tensor_shapes(folder / SAFETENSORS)
    check_names(folder / SAFETENSORS, "bundle's", found, bundle.tensor_shapes())
    check_sizes(folder / SAFETENSORS, found)
    check_shapes(folder / SAFETENSORS, found, bundle.tensor_shapes())
    return bundle


def drafter_of(folder: Path, bundle: Bundle) -> MoAClientDrafter:
    """The drafter of a bundle that was read, in float32."""
    eps, layers = bundle.rms_norm_eps, (bundle.self_attention, bundle.cross_attention)
    with torch.device("meta"):
        read_text = DecoderLayer(layers[0], eps, Rotary(bundle.rope_theta, bundle.rope_scaling))
        model = ClientModel(read_text, DecoderLayer(layers[1], eps, Rotary(bundle.rope_theta)), bundle.vocab_size)
    tensors = {name: tensor.float() for name, tensor in load_tensors(folder / SAFETENSORS).items()}
    tensors.setdefault(HEAD, tensors[EMBEDDING])
    model.load_state_dict(tensors, assign=True)
    return MoAClientDrafter(model, *layers, TreeShape(bundle.nodes, bundle.depth, bundle.top_k))
