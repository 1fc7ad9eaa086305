"""MoA's layers against those of transformers and by hand, and the target's last layers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from tests.unit.moa_masks import two_key_sets
from tests.unit.moa_models import (
    E_,
    LENGTH,
    SHAPE,
    assert_same,
    biased_qwen,
    causal,
    is_same,
    normed_qwen3,
    plain_drafter,
    scaled_llama,
    seen,
)
from vllm_specext.methods.layers import Rotary, rotate
from vllm_specext.methods.moa.checkpoint import LayerShape
from vllm_specext.methods.moa.model import DecoderLayer, MoADrafter
from vllm_specext.training.moa.blocks import last_verified
from vllm_specext.training.moa.target import (
    last_target_layers,
    side_by_side,
    target_layer_shape,
    target_states,
)


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return scaled_llama()


@pytest.fixture(scope="module")
def qwen() -> Qwen2ForCausalLM:
    return biased_qwen()


@pytest.fixture(scope="module")
def qwen3() -> Qwen3ForCausalLM:
    return normed_qwen3()


@pytest.fixture
def drafter() -> MoADrafter:
    return plain_drafter()


def test_keys_and_values_of_a_head_lie_side_by_side(target: LlamaForCausalLM) -> None:
    rows = seen(target)
    tokens = torch.randint(0, 50, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    cache = target(tokens, use_cache=True).past_key_values
    for b, t, layer in ((0, 0, 0), (1, 7, 2), (0, LENGTH - 1, 1)):
        keys, values = cache.layers[layer].keys, cache.layers[layer].values
        by_hand = torch.cat([x[b, head, t] for head in range(2) for x in (keys, values)])
        assert torch.equal(rows.kv[b, t, layer], by_hand)
        all_keys_first = torch.cat([x[b, head, t] for x in (keys, values) for head in range(2)])
        assert not torch.equal(rows.kv[b, t, layer], all_keys_first)


def test_cached_keys_have_their_rotary_positions(target: LlamaForCausalLM) -> None:
    """The same token twice: its first layer's values agree, its keys do not."""
    rows = target_states(target, torch.full((1, 2), 7), torch.ones(1, 2, dtype=torch.bool), 0)
    first, second = rows.kv[0, :, 0].unflatten(-1, (2, 2, 16)).unbind(0)
    assert_same(first[:, 1], second[:, 1])
    assert not is_same(first[:, 0], second[:, 0])


def llama_layer(ours: DecoderLayer, shape: LayerShape, theta: float) -> Callable[[Tensor, Tensor | None], Tensor]:
    """transformers' decoder layer with the weights of ``ours``; a mask is what is added to the scores."""
    config = LlamaConfig(
        hidden_size=shape.width,
        intermediate_size=shape.mlp_size,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        attn_implementation="eager",
    )
    layer = LlamaDecoderLayer(config, 0).eval()
    layer.load_state_dict(ours.state_dict())
    rotary = LlamaRotaryEmbedding(config)

    def run(hidden: Tensor, mask: Tensor | None) -> Tensor:
        positions = torch.arange(hidden.shape[1])[None]
        output = layer(hidden, attention_mask=mask, position_embeddings=rotary(hidden, positions))
        return output[0] if isinstance(output, tuple) else output

    return run


@torch.no_grad()
def test_memory_is_the_mean_over_the_layers_of_a_llama_layer(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    kv = seen(target).kv
    layer = llama_layer(drafter.layer_self_attention, SHAPE.layer_self_attention, SHAPE.rope_theta)  # type: ignore[arg-type]
    by_token = torch.stack([layer(kv[:, t], None) for t in range(LENGTH)], dim=1)
    expected = by_token.mean(dim=2) @ drafter.Ekv2E.weight.T + drafter.Ekv2E.bias
    assert_same(drafter.memory(kv), expected)
    assert not is_same(drafter.memory(kv), by_token[:, :, -1] @ drafter.Ekv2E.weight.T + drafter.Ekv2E.bias)


@torch.no_grad()
def test_self_attention_is_a_llama_layer(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    embeddings = seen(target).embeddings
    layer = llama_layer(drafter.self_attention, SHAPE.self_attention, SHAPE.rope_theta)
    scores = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~causal(LENGTH), float("-inf"))
    hidden, _ = drafter.read(embeddings, torch.arange(LENGTH)[None], causal(LENGTH))
    assert_same(hidden, layer(embeddings, scores))
    assert not is_same(hidden, layer(embeddings, None))


def turned(vector: Tensor, position: int) -> Tensor:
    """Rotary embedding of one head's vector as complex numbers."""
    half = len(vector) // 2
    angles = position * SHAPE.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    pairs = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag))


@torch.no_grad()
def test_cross_attention_by_hand(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    """One query at position 9, six verified tokens, loops in float64."""
    kv = seen(target).kv[:1, :6]
    query = torch.randn(E_, generator=torch.Generator().manual_seed(0))
    actual = drafter.predict(query[None, None], torch.tensor([[9]]), drafter.absorb(kv, torch.arange(6)[None]))
    w = {name: tensor.double() for name, tensor in drafter.cross_attention.state_dict().items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean() + 1e-5).sqrt() * w[f"{name}_layernorm.weight"]

    def heads(x: Tensor, name: str) -> Tensor:
        return (w[f"self_attn.{name}_proj.weight"] @ x).unflatten(0, (4, 16))

    memory = [norm(m, "input") for m in drafter.memory(kv)[0].double()]
    hidden = query.double()
    q = heads(norm(hidden, "input"), "q")
    attended = []
    for head in range(4):
        scores = [turned(q[head], 9) @ turned(heads(m, "k")[head], position) / 4 for position, m in enumerate(memory)]
        weights = torch.stack(scores).softmax(dim=0)
        attended.append(sum(weight * heads(m, "v")[head] for weight, m in zip(weights, memory, strict=True)))
    hidden = hidden + w["self_attn.o_proj.weight"] @ torch.cat(attended)
    x = norm(hidden, "post_attention")
    gate, up = w["mlp.gate_proj.weight"] @ x, w["mlp.up_proj.weight"] @ x
    expected = hidden + w["mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
    torch.testing.assert_close(actual[0, 0].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("used", [1, 2, 3])
@pytest.mark.parametrize("family", ["target", "qwen", "qwen3"])
def test_a_perfect_feature_reproduces_the_targets_logits(
    family: str, used: int, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(family)
    tokens = torch.randint(0, 50, (2, LENGTH), generator=torch.Generator().manual_seed(4))
    output = model(tokens, output_hidden_states=True)
    layers = last_target_layers(model, used)
    everything = torch.zeros(2, LENGTH, dtype=torch.bool)
    everything[:, 0] = True
    kvs = [(kv.keys, kv.values) for kv in output.past_key_values.layers][-used:]
    feature = output.hidden_states[-1 - used]
    for boundaries in (everything, torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.3):
        mask = two_key_sets(last_verified(boundaries | everything))
        final, _ = layers(feature, torch.arange(LENGTH)[None], mask, kvs)
        torch.testing.assert_close(model.lm_head(final), output.logits, rtol=1e-4, atol=1e-4)
    final, _ = layers(
        output.hidden_states[-2 - used] if used < 3 else feature + 0.1, torch.arange(LENGTH)[None], mask, kvs
    )
    assert not is_same(model.lm_head(final), output.logits)


def test_the_targets_weights_are_shared_and_stay_as_they_are(target: LlamaForCausalLM) -> None:
    layers = last_target_layers(target, 2)
    assert layers.norm.weight.data_ptr() == target.base_model.norm.weight.data_ptr()
    assert not any(p.requires_grad for p in layers.parameters())
    assert target_layer_shape(target).kv_heads == 2


def test_side_by_side_undoes_to_keys_and_values() -> None:
    keys, values = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    both = side_by_side((keys, values)).unflatten(-1, (3, 2, 4))
    assert torch.equal(both[..., 0, :].transpose(1, 2), keys)
    assert torch.equal(both[..., 1, :].transpose(1, 2), values)


def test_rotation_of_position_zero_is_none() -> None:
    x = torch.randn(1, 2, 3, 8)
    assert torch.equal(rotate(x, torch.zeros(1, 3), Rotary(10.0)), x)
