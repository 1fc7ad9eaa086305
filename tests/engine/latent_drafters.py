"""EAGLE-3 drafters for the small targets with latent attention (MLA), with Llama's attention and with DeepSeek's, and
the same in plain torch.

Weights are random but for the attention of a row to itself, from which goes on what a token's embedding says of the
next one: that is what the targets go by as well (``latent.py``), so that many drafts are right.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from tests.engine.latent import KEYS, LOUDNESS
from tests.engine.modules import Kept
from vllm_specext.methods.layers import KV, Attention, GatedMLP, RMSNorm, Rotary

WEIGHTS = "model.safetensors"
D: int = KEYS["hidden_size"]
HEADS, EPS = 4, 1e-6
READ = (1, 2, 3)
"""The target's layers whose inputs are read."""
FOCUS = 3
"""How much a row attends to itself."""
GAIN = 8
"""Of what is read and of what attention gives, which takes the former away and puts the embedding in its place."""
COMMON = {
    "vocab_size": KEYS["vocab_size"],
    "hidden_size": D,
    "intermediate_size": KEYS["intermediate_size"],
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": 1,
    "max_position_embeddings": KEYS["max_position_embeddings"],
    "rms_norm_eps": EPS,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eagle_aux_hidden_state_layer_ids": READ,
}
LATENT = {key: KEYS[key] for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")}
LATENT |= {"q_lora_rank": D, "rope_theta": 10000.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "beta_fast": 32, "beta_slow": 1}
LATENT |= {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": COMMON
    | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "head_dim": D // HEADS, "rope_theta": 1e4},
    "deepseek": COMMON | LATENT | {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"},
}


class LatentAttention(nn.Module):
    """Transformers' attention of DeepSeek V3 over rows that are twice as wide as what it gives."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.DeepseekV3Config(
            **LATENT | {"hidden_size": 2 * D, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
        )
        config._attn_implementation = "eager"
        self.attention = DeepseekV3Attention(config, 0)
        self.attention.o_proj = nn.Linear(HEADS * config.v_head_dim, D, bias=False)
        self.rotary = DeepseekV3RotaryEmbedding(config)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, past: KV | None) -> tuple[Tensor, KV]:
        kept = Kept(past)
        made, _ = self.attention(
            x,
            position_embeddings=self.rotary(x, positions),
            attention_mask=torch.zeros(mask.shape).masked_fill(~mask, float("-inf")),
            past_key_values=kept,
        )
        assert kept.kv is not None
        return made, kept.kv


class Layer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (RMSNorm(D, EPS) for _ in range(3))
        llama = Attention(2 * D, HEADS, HEADS, D // HEADS, Rotary(1e4), out_width=D)
        self.self_attn = llama if kind == "llama" else LatentAttention()
        self.mlp = GatedMLP(D, KEYS["intermediate_size"])


class Drafter(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc = nn.Linear(len(READ) * D, D, bias=False)
        self.layer = Layer(kind)
        self.norm = RMSNorm(D, EPS)


def names_in_files(drafter: Drafter) -> dict[str, Tensor]:
    renamed = {"layer.": "layers.0.", "self_attn.attention.": "self_attn."}
    tensors = {}
    for name, tensor in drafter.state_dict().items():
        for ours, theirs in renamed.items():
            name = name.replace(ours, theirs)
        tensors[name] = tensor
    return tensors


def make_drafter(folder: Path, kind: str) -> Path:
    """Write one of ``CONFIGS``."""
    torch.manual_seed(2)
    drafter = Drafter(kind)
    with torch.no_grad():
        for weight in drafter.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05) if weight.ndim == 1 else weight.normal_(0, 0.01)
        loudness = 0.08 * LOUDNESS * (len(READ) * D) ** 0.5
        drafter.fc.weight.normal_(0, GAIN / loudness)
        attention: Any = drafter.layer.self_attn
        embedding, hidden = torch.eye(2 * D).chunk(2)
        if kind == "llama":
            for one in (attention.q_proj, attention.k_proj):
                one.weight.add_(FOCUS * embedding)
            attention.v_proj.weight.add_(embedding - hidden)
            attention.o_proj.weight.add_(GAIN * torch.eye(D))
        else:
            attention, head = attention.attention, torch.eye(D)
            attention.q_a_proj.weight.add_(embedding)
            attention.kv_a_proj_with_mqa.weight[: 4 * D].add_(torch.eye(2 * D).repeat(2, 1))
            attention.q_b_proj.weight.view(HEADS, -1, D)[:, :D].add_(FOCUS * head)
            keys, values = attention.kv_b_proj.weight.view(HEADS, 2, D, -1).unbind(1)
            keys[..., :D].add_(FOCUS * head)
            values[..., : 2 * D].add_(embedding - hidden)
            attention.o_proj.weight.add_(GAIN / HEADS * head.repeat(1, HEADS))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    save_file({name: tensor.contiguous() for name, tensor in names_in_files(drafter).items()}, folder / WEIGHTS)
    return folder


class PlainDrafter:
    """What ``make_drafter`` wrote to ``folder``, beside the ``target`` in transformers."""

    def __init__(self, folder: Path, kind: str, target: Path) -> None:
        self.target = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self.drafter, found = Drafter(kind).eval(), load_file(folder / WEIGHTS)
        self.layers = deepcopy(self.target.model)
        self.layers.norm = nn.Identity()  # what the last layer leaves is read without it
        ours = zip(self.drafter.state_dict(), names_in_files(self.drafter), strict=True)
        self.drafter.load_state_dict({name: found[theirs] for name, theirs in ours})

    @torch.no_grad()
    def features(self, sequence: list[int]) -> Tensor:
        """What the drafter reads of every position of a text, ``[tokens, d]``."""
        states = self.layers(torch.tensor([sequence]), output_hidden_states=True).hidden_states
        features: Tensor = self.drafter.fc(torch.cat([states[layer] for layer in READ], dim=-1))[0]
        return features

    def logits(self, features: Tensor) -> Tensor:
        made: Tensor = self.target.lm_head(features)
        return made

    def __call__(
        self, ids: Tensor, features: Tensor, positions: Tensor, mask: Tensor, past: KV | None
    ) -> tuple[Tensor, Tensor, KV]:
        """As a ``Drafter`` of ``test_tree_drafting``."""
        layer, tokens = self.drafter.layer, self.target.get_input_embeddings()(ids)
        fused = torch.cat((layer.input_layernorm(tokens), layer.hidden_norm(features)), dim=-1)
        attended, past = layer.self_attn(fused, positions, mask, past)
        residual = features + attended
        output = residual + layer.mlp(layer.post_attention_layernorm(residual))
        return self.drafter.norm(output), output, past
