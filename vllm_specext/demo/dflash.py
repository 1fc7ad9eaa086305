"""The bundled DFlash drafter: its sizes, and its checkpoint as vLLM reads it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from vllm_specext.methods.block.model import DFlashDrafter, Sizes
from vllm_specext.methods.checkpoints import SAFETENSORS
from vllm_specext.methods.layers import Rotary
from vllm_specext.training.eagle3.shape import layers_to_read

if TYPE_CHECKING:
    from transformers import LlamaConfig

HEADS = 4
"""Of queries, keys and values each."""
MLP_SIZE = 960
BLOCK = 5
"""Rows of a block: the last token of a text, and four mask tokens."""
MASK = 1
"""The token that stands for what is not drafted yet: the mark of a user's turn, which nothing drafts."""


def target_layers(layers: int) -> list[int]:
    """The target's layers whose output the drafter reads, from 0 up; the bundled EAGLE-3 drafter reads the same."""
    return [layer - 1 for layer in layers_to_read(layers)]


def drafter_for(config: "LlamaConfig") -> DFlashDrafter:
    """An untrained drafter of one layer."""
    return DFlashDrafter(
        Sizes(
            hidden_size=config.hidden_size,
            states_size=len(target_layers(config.num_hidden_layers)) * config.hidden_size,
            layers=1,
            heads=HEADS,
            kv_heads=HEADS,
            head_dim=config.head_dim,
            mlp_size=MLP_SIZE,
            rms_norm_eps=config.rms_norm_eps,
            rotary=Rotary(config.rope_parameters["rope_theta"]),
        )
    )


def save(drafter: DFlashDrafter, target: "LlamaConfig", folder: Path) -> None:
    """Write the drafter to ``folder`` in the layout of the released checkpoints, in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 1,
        "num_target_layers": target.num_hidden_layers,
        "intermediate_size": MLP_SIZE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "attention_bias": False,
        "torch_dtype": "float16",
        "tie_word_embeddings": False,
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": target_layers(target.num_hidden_layers)},
    }
    same = ("hidden_size", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act")
    config |= {name: getattr(target, name) for name in same}
    config["rope_theta"] = target.rope_parameters["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.half().contiguous() for name, tensor in drafter.state_dict().items()}, folder / SAFETENSORS)
