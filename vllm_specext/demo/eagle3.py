"""EAGLE-3's drafter (Li et al., arXiv 2503.01840) in plain torch, to train the one that the benchmarks compare with.

vLLM serves it with its own method ``eagle3``. Input ``s`` of a sequence pairs hidden states of position ``s``, the
target's from three layers or this drafter's own from the step before, with the embedding of token ``s + 1``; of output
``s`` the head makes the logits of token ``s + 2``. Embedding and head are the target's, and not in the file. Module
names are those of the released checkpoints, after vLLM's renaming.

Shapes: ``B`` sequences, ``L`` inputs, ``d`` hidden size.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from vllm_specext.methods.layers import Attention, RMSNorm, Rotary
from vllm_specext.training.own_keys import Passes

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

FILE = "model.safetensors"
MLP_SIZE = 704
HEADS = 4
"""Heads of queries, keys and values, as many of each as in the bundled GRIFFIN drafter."""


def read_layers(layers: int) -> tuple[int, int, int]:
    """The numbers of the target's layers after which the drafter reads hidden states; they are vLLM's choice where a
    checkpoint names none."""
    return 2, layers // 2, layers - 3


class MLP(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, MLP_SIZE, bias=False)
        self.up_proj = nn.Linear(hidden_size, MLP_SIZE, bias=False)
        self.down_proj = nn.Linear(MLP_SIZE, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class Layer(nn.Module):
    """A Llama layer whose attention reads the embedding and the hidden state side by side."""

    def __init__(self, target: "LlamaConfig") -> None:
        super().__init__()
        d, eps = target.hidden_size, target.rms_norm_eps
        rotary = Rotary(target.rope_parameters["rope_theta"])
        self.input_layernorm = RMSNorm(d, eps)
        self.hidden_norm = RMSNorm(d, eps)
        self.self_attn = Attention(2 * d, HEADS, HEADS, target.head_dim, rotary, out_width=d)
        self.post_attention_layernorm = RMSNorm(d, eps)
        self.mlp = MLP(d)

    def fuse(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        return torch.cat((self.input_layernorm(embeddings), self.hidden_norm(hidden)), dim=-1)

    def finish(self, residual: Tensor) -> Tensor:
        """The part after attention."""
        finished: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return finished


class Eagle3Drafter(nn.Module):
    def __init__(self, target: "LlamaForCausalLM") -> None:
        """Untrained, for ``target``, with its last norm."""
        super().__init__()
        config = target.config
        self.config = config
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(config)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm.weight.data.copy_(target.model.norm.weight)

    def passes(self, embeddings: Tensor, hidden_states: Tensor, count: int) -> Iterator[Tensor]:
        """The head's inputs ``[B, L, d]`` in passes 1 to ``count`` over the same ``embeddings`` ``[B, L, d]``; pass
        ``n`` reads what the ``n``-th step of a chain would (the paper's training-time test). ``hidden_states`` ``[B, L,
        3 d]`` are the target's."""
        (layer,) = self.layers
        assert isinstance(layer, Layer)
        passed = Passes(layer.self_attn, embeddings.shape[1], embeddings.device)
        hidden = self.fc(hidden_states)
        for _ in range(count):
            output = layer.finish(hidden + passed.attend(layer.fuse(hidden, embeddings)))
            yield self.norm(output)
            hidden = torch.cat((hidden[:, :1], output[:, :-1]), dim=1)

    def save(self, folder: Path) -> None:
        """Write the drafter to ``folder`` as vLLM reads it, in float16."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "intermediate_size": MLP_SIZE,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "torch_dtype": "float16",
            "tie_word_embeddings": False,
        }
        same = ("hidden_size", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act")
        config |= {name: getattr(self.config, name) for name in same}
        config["rope_theta"] = self.config.rope_parameters["rope_theta"]
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file({name: tensor.half().contiguous() for name, tensor in self.state_dict().items()}, folder / FILE)
