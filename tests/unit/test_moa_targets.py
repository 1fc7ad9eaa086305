"""MoA's training with the last layers of targets other than Llama's."""

from pathlib import Path

import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.unit.moa_acceptance import measure_moa_acceptance
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.moa.checkpoint import read_shape
from vllm_specext.training.acceptance import greedy_continuations
from vllm_specext.training.moa.target import TargetStateReader, last_target_layers
from vllm_specext.training.moa.train import MoATraining, train_moa
from vllm_specext.training.moa.untrained import new_moa_drafter

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def made(kind: type[PreTrainedModel], config: type, **changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return kind(config(**SIZES, **changes)).eval().requires_grad_(False)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_drafter_for_qwen3_is_trained_through_its_last_layer(tmp_path: Path, bfloat16: bool) -> None:
    target = made(Qwen3ForCausalLM, Qwen3Config)
    sizes = {"mlp_size": 40, "kv_heads": 2, "lsa_mlp_size": 16, "lsa_kv_heads": 2, "target_layer_inference": 1}
    model = new_moa_drafter(target, **sizes)
    own = greedy_continuations(target, torch.randint(0, 50, (24, 8), generator=torch.Generator().manual_seed(0)), 16)
    before = measure_moa_acceptance(model, target, own, 8)
    recipe = MoATraining(
        steps=70,
        decay_steps=70,
        learning_rate=1e-2,
        warmup_steps=3,
        drafted=(3, 5),
        optimizer="muon",
        bfloat16=bfloat16,
    )
    source = TargetStateReader(target, list(own), 8, 0, 1, bfloat16=bfloat16)
    train_moa(model, target.lm_head.weight, last_target_layers(target, 1), source, tmp_path, recipe)
    after = measure_moa_acceptance(model, target, own, 8)
    assert after.tokens_per_verification > before.tokens_per_verification + 0.3
    assert read_shape(tmp_path) == model.shape


def test_another_architectures_last_layers_are_refused_with_those_that_are_allowed() -> None:
    with pytest.raises(
        ConfigurationError, match=r"last layers of a GemmaForCausalLM .*LlamaForCausalLM.*Qwen3.* 0 works"
    ):
        last_target_layers(made(GemmaForCausalLM, GemmaConfig), 1)


def test_a_tensor_that_is_not_known_is_named() -> None:
    """Llama's switch for biases gives one to the output projection too, which Qwen2's does not have."""
    with pytest.raises(ConfigurationError, match=r"tensor layers\.0\.self_attn\.o_proj\.bias .* LlamaForCausalLM"):
        last_target_layers(made(LlamaForCausalLM, LlamaConfig, attention_bias=True), 1)
