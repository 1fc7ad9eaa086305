"""The drafters of the rows. Those whose parts differ from the served GRIFFIN drafter live for the benchmark alone."""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.ablation.rows import Row, Second
from vllm_specext.methods.griffin.model import GriffinDrafter, TokenGuidedFusion
from vllm_specext.methods.moa.model import GatedMLP
from vllm_specext.training.eagle3.model import Eagle3Drafter, new_eagle3_drafter
from vllm_specext.training.eagle3.shape import Eagle3Shape, layers_to_read
from vllm_specext.training.griffin.train import new_griffin_drafter

MLP_SIZE = 704
HEADS = 4
"""Of queries, keys and values each."""


class OtherFusion(nn.Module):
    """``fusion`` with another second input."""

    def __init__(self, fusion: TokenGuidedFusion, second: Second) -> None:
        super().__init__()
        self.fc, self.second = fusion.fc, second
        if second != "none":
            self.post_attention_layernorm, self.mlp = fusion.post_attention_layernorm, fusion.mlp

    def forward(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Features and embeddings ``[B, L, d]`` -> ``[B, L, d]``."""
        hidden: Tensor = self.fc(torch.cat((embeddings, features), dim=-1))
        if self.second == "none":
            return hidden
        second = {"embedding": embeddings, "hidden": hidden, "feature": features}[self.second]
        merged: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden), second)
        return merged


class OneFeature(nn.Module):
    """An MLP of which one feature serves as the predict and as the regress feature."""

    def __init__(self, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        self.mlp = GatedMLP(hidden_size, mlp_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        added: Tensor = self.mlp(x)
        return added, added


def new_griffin(row: Row, target: LlamaForCausalLM, seed: int) -> GriffinDrafter:
    """The untrained GRIFFIN drafter of ``row``. Parts that rows have in common begin with the same weights."""
    widths = {"heads": HEADS, "kv_heads": HEADS, "head_dim": target.config.head_dim}
    model = new_griffin_drafter(target, mlp_size=MLP_SIZE, **widths, seed=seed)
    if row.second != "embedding":
        model.add_module("fc", OtherFusion(model.fc, row.second))
    if not row.two_heads:
        torch.manual_seed(seed)
        model.layer.add_module("mlp", OneFeature(model.shape.hidden_size, model.shape.mlp_size))
    return model


def eagle3_shape(config: LlamaConfig) -> Eagle3Shape:
    return Eagle3Shape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=config.head_dim,
        mlp_size=MLP_SIZE,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        layers=layers_to_read(config.num_hidden_layers),
    )


def new_eagle3(target: LlamaForCausalLM, seed: int) -> Eagle3Drafter:
    """The untrained EAGLE-3 drafter."""
    return new_eagle3_drafter(eagle3_shape(target.config), target.model.norm.weight, seed)
