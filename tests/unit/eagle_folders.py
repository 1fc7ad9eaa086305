"""Small made checkpoints of EAGLE drafters, in the layouts in which they are released."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.eagle import prepare as module
from vllm_specext.registry import METHODS

VOCABULARY, DRAFTED, D, TARGET_D, HEADS, KV_HEADS, MLP, TARGET_LAYERS, CONTEXT = 40, 24, 16, 16, 4, 2, 20, 12, 64
WEIGHTS, BIN, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"

Tensors = dict[str, Tensor]
Config = dict[str, Any]
Edit = Callable[[Path], None]

LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": D,
    "intermediate_size": MLP,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": 32,
    "torch_dtype": "float16",
}
OWN_VOCABULARY: Config = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFTED}
QWEN: Config = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": D // HEADS,
    "draft_vocab_size": DRAFTED,
}


def eagle3(layer: str = "midlayer.", d: int = D, target_d: int = TARGET_D, states: int = 3) -> Tensors:
    """As SafeAILab's trainer saves them, without the embedding."""
    width = D // HEADS
    shapes = {
        "fc.weight": (d, states * target_d),
        f"{layer}hidden_norm.weight": (d,),
        f"{layer}input_layernorm.weight": (d,),
        f"{layer}post_attention_layernorm.weight": (d,),
        f"{layer}self_attn.q_proj.weight": (HEADS * width, 2 * d),
        f"{layer}self_attn.k_proj.weight": (KV_HEADS * width, 2 * d),
        f"{layer}self_attn.v_proj.weight": (KV_HEADS * width, 2 * d),
        f"{layer}self_attn.o_proj.weight": (d, HEADS * width),
        f"{layer}mlp.gate_proj.weight": (MLP, d),
        f"{layer}mlp.up_proj.weight": (MLP, d),
        f"{layer}mlp.down_proj.weight": (d, MLP),
        "norm.weight": (d,),
        "lm_head.weight": (DRAFTED, d),
    }
    own = torch.arange(0, 2 * DRAFTED, 2)[:DRAFTED].clamp(max=VOCABULARY - 1)
    own = torch.cat((own[:8], torch.arange(16, 16 + DRAFTED - 8)))
    tensors: Tensors = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in shapes.items()}
    tensors["d2t"] = own - torch.arange(DRAFTED)
    tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, own, True)
    return tensors


LATENT = {
    "q_lora_rank": 6,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
}
KIMI: Config = {
    **LATENT,
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "draft_vocab_size": DRAFTED,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 7], "use_aux_hidden_state": True},
}


def kimi() -> Tensors:
    """As TorchSpec saves them, with latent attention."""
    attention = "layers.0.self_attn."
    keep = {name: x for name, x in eagle3("layers.0.").items() if not name.startswith(attention)}
    shapes = {"q_a_proj": (6, 2 * D), "q_a_layernorm": (6,), "q_b_proj": (HEADS * 6, 6), "o_proj": (D, HEADS * 5)}
    shapes |= {"kv_a_proj_with_mqa": (10, 2 * D), "kv_a_layernorm": (8,), "kv_b_proj": (HEADS * 9, 8)}
    made = {f"{attention}{name}.weight": torch.zeros(shape).half() for name, shape in shapes.items()}
    return keep | made


def eagle1() -> Tensors:
    """As SafeAILab's first trainer saves them."""
    keep = eagle3("layers.0.")
    for name in ("norm.weight", "lm_head.weight", "d2t", "t2d"):
        del keep[name]
    for name in ("hidden_norm", "input_layernorm"):
        del keep[f"layers.0.{name}.weight"]
    for name in "qkv":
        full = f"layers.0.self_attn.{name}_proj.weight"
        keep[full] = keep[full][:, :D].contiguous()
    keep["fc.weight"] = torch.zeros(D, 2 * D, dtype=torch.float16)
    keep["embed_tokens.weight"] = torch.zeros(VOCABULARY, D, dtype=torch.float16)
    return keep


def without(tensors: Tensors, *names: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def two_layers() -> Tensors:
    """The second reads nothing but the first, and has no ``hidden_norm``."""
    second = {name: x for name, x in eagle3("layers.1.").items() if name.startswith("layers.1.")}
    for name in ("q", "k", "v"):
        full = f"layers.1.self_attn.{name}_proj.weight"
        second[full] = second[full][:, :D].contiguous()
    return eagle3("layers.0.") | without(second, "layers.1.hidden_norm.weight")


def nested(layer: Config | None = None, **keys: Any) -> Config:
    """``config.json`` as speculators 0.9 writes it."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "draft_vocab_size": DRAFTED,
        "eagle_aux_hidden_state_layer_ids": None,
        "norm_before_residual": True,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "transformer_layer_config": {key: LLAMA[key] for key in LLAMA if key != "architectures"} | (layer or {}),
    } | keys


def write(folder: Path, config: Config, tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS)
    return folder


def safeailab(folder: Path) -> None:
    write(folder, LLAMA | OWN_VOCABULARY, eagle3())


def as_bin(folder: Path, **options: Any) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / BIN, **options)
    (folder / WEIGHTS).unlink()


def edit_config(**changes: Any) -> Edit:
    """Change keys; those that become ``...`` are taken out."""

    def edit(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))

    return edit


def edit_tensors(change: Callable[[Tensors], object]) -> Edit:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return edit


def add(**tensors: Tensor) -> Edit:
    """Tensors by name, in which ``__`` stands for a dot."""
    return edit_tensors(lambda found: found.update({name.replace("__", "."): x for name, x in tensors.items()}))


def drop(name: str) -> Edit:
    return edit_tensors(lambda tensors: tensors.pop(name))


def prepared(
    folder: Path, method: str = "eagle3-tree", trust_remote_code: bool = False, latent: bool = False, **keys: Any
) -> Config:
    """The overrides that `prepare` makes for a target of ``TARGET_LAYERS`` layers, that are ``latent`` or not."""
    options = METHODS[method].options
    target = SimpleNamespace(
        trust_remote_code=trust_remote_code,
        max_model_len=CONTEXT,
        use_mla=latent,
        hf_text_config=SimpleNamespace(**LATENT, num_attention_heads=HEADS),
        get_vocab_size=lambda: VOCABULARY,
        get_hidden_size=lambda: TARGET_D,
        get_total_num_hidden_layers=lambda: TARGET_LAYERS,
    )
    launch: Any = SimpleNamespace(model=target)
    return module.prepare(options(model=str(folder), **keys), launch).overrides


def refusal(folder: Path, method: str = "eagle3-tree", **keys: Any) -> str:
    """The one sentence with which the checkpoint is refused."""
    with pytest.raises(ConfigurationError) as raised:
        prepared(folder, method, **keys)
    message = str(raised.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message
