"""What the order of layers and of tokens means to MoA's attention."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.unit.moa_models import (
    E_,
    LAYERS,
    LENGTH,
    LLAMA3,
    SHAPE,
    SIZES,
    assert_same,
    causal,
    is_same,
    plain_drafter,
    scaled_llama,
    seen,
)
from vllm_specext.methods.layers import RopeScaling, Rotary
from vllm_specext.methods.moa.model import MoADrafter


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return scaled_llama()


@pytest.fixture
def drafter() -> MoADrafter:
    return plain_drafter()


def test_memory_depends_on_the_order_of_the_layers(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    kv = seen(target).kv
    assert not is_same(drafter.memory(kv[:, :, [1, 0, 2]]), drafter.memory(kv))


def test_a_tokens_memory_does_not_depend_on_other_tokens(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    kv = seen(target).kv
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0))
    assert_same(drafter.memory(kv[:, order]), drafter.memory(kv)[:, order])
    assert_same(drafter.memory(kv[1:, 5:6]), drafter.memory(kv)[1:, 5:6])


def test_without_positions_the_order_of_the_layers_would_not_matter(
    drafter: MoADrafter, target: LlamaForCausalLM
) -> None:
    """What makes the test above fail: attention over layers that all have the same position."""
    kv = seen(target).kv.flatten(0, 1)
    nowhere = torch.zeros(1, LAYERS)
    plain, _ = drafter.layer_self_attention(kv, nowhere, None)
    mixed, _ = drafter.layer_self_attention(kv[:, [1, 0, 2]], nowhere, None)
    assert_same(plain.mean(dim=1), mixed.mean(dim=1))


def test_every_layer_sees_every_other(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    kv = seen(target).kv.flatten(0, 1)
    layers = torch.arange(LAYERS)[None]
    before, _ = drafter.layer_self_attention(kv, layers, None)
    for changed in range(LAYERS):
        other = kv.clone()
        other[:, changed] += 1
        after, _ = drafter.layer_self_attention(other, layers, None)
        assert ((after - before).abs().amax(dim=(0, 2)) > 1e-3).all()


def test_without_layer_self_attention_the_layers_are_averaged(target: LlamaForCausalLM) -> None:
    model = MoADrafter(replace(SHAPE, layer_self_attention=None)).requires_grad_(False)
    assert not any(name.startswith("layer_self_attention") for name in model.state_dict())
    kv = seen(target).kv
    assert_same(model.memory(kv), model.Ekv2E(sum(kv[:, :, layer] for layer in range(LAYERS)) / LAYERS))


def test_recomputed_activations_give_the_same_gradients(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    kv, gradients, calls = seen(target).kv, [], []
    drafter.requires_grad_(True)
    drafter.layer_self_attention.input_layernorm.register_forward_hook(lambda *_: calls.append(drafter.lsa_chunk))
    for drafter.lsa_chunk in (None, 7):
        drafter.zero_grad()
        drafter.memory(kv).square().sum().backward()
        gradients.append([p.grad.clone() for p in drafter.layer_self_attention.parameters() if p.grad is not None])
    tokens = kv.shape[0] * kv.shape[1]
    assert tokens % 7
    assert calls == [None] + [7] * 2 * (tokens // 7 + 1)
    assert len(gradients[0]) == len(gradients[1]) == 9
    for one, other in zip(*gradients, strict=True):
        # In another order of sums.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_queries_and_memory_share_one_norm(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    rows = seen(target)
    at = torch.arange(LENGTH)[None]
    hidden, verified = drafter.read(rows.embeddings, at, causal(LENGTH))[0], drafter.absorb(rows.kv, at)
    before = drafter.predict(hidden, at, verified)
    drafter.cross_attention.input_layernorm.weight.mul_(torch.linspace(0.2, 2, E_))
    assert not is_same(drafter.absorb(rows.kv, at)[0], verified[0])
    assert not is_same(drafter.predict(hidden, at, verified), before)


def test_cross_attention_depends_on_distances_alone(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    rows = seen(target)
    at = torch.arange(LENGTH)[None]
    hidden, _ = drafter.read(rows.embeddings, at, causal(LENGTH))
    expected = drafter.predict(hidden, at, drafter.absorb(rows.kv, at))
    torch.testing.assert_close(
        drafter.predict(hidden, at + 9, drafter.absorb(rows.kv, at + 9)), expected, rtol=1e-4, atol=1e-4
    )
    assert not is_same(drafter.predict(hidden, at + 1, drafter.absorb(rows.kv, at)), expected)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
        LLAMA3,
        {**LLAMA3, "original_max_position_embeddings": 64, "high_freq_factor": 9.0},
    ],
    ids=["default", "linear", "llama3", "llama3 longer"],
)
def test_rotary_frequencies_are_those_of_transformers(rope: dict) -> None:
    expected = LlamaRotaryEmbedding(LlamaConfig(**SIZES, rope_parameters=rope)).inv_freq
    values = {key: rope[key] for key in rope if key not in ("rope_type", "rope_theta")}
    scaling = RopeScaling(rope["rope_type"], **values) if values else None
    assert_same(Rotary(rope["rope_theta"], scaling).frequencies(8, torch.device("cpu")), expected)


def test_only_self_attention_over_tokens_has_scaled_positions() -> None:
    model = MoADrafter(replace(SHAPE, rope_scaling=RopeScaling("linear", 2.0)))
    assert model.self_attention.self_attn.rotary.scaling is not None
    assert model.cross_attention.self_attn.rotary.scaling is None
    assert model.layer_self_attention.self_attn.rotary.scaling is None
