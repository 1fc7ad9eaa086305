"""The plain MoA drafter: what the layers' order and the tokens' order mean to it, and that it drafts step by step what
it computes over a whole sequence."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from vllm_specext.methods.layers import KV, RopeScaling, Rotary, rotate
from vllm_specext.methods.moa.checkpoint import LayerShape, MoAShape
from vllm_specext.methods.moa.model import DecoderLayer, MoADrafter
from vllm_specext.methods.moa.target_layers import TargetLayers, two_key_sets
from vllm_specext.training.moa_blocks import last_verified, memory_mask, token_mask
from vllm_specext.training.moa_target import (
    TargetRows,
    last_target_layers,
    side_by_side,
    target_layer_shape,
    target_rows,
)

E_, LAYERS, LENGTH = 64, 3, 24
KV_WIDTH = 64
SHAPE = MoAShape(
    hidden_size=E_,
    kv_width=KV_WIDTH,
    self_attention=LayerShape(E_, 4, 2, 16, 40),
    cross_attention=LayerShape(E_, 4, 4, 16, 48),
    layer_self_attention=LayerShape(KV_WIDTH, 4, 1, 16, 24),
    vocab_size=50,
    rms_norm_eps=1e-5,
    rope_theta=500.0,
    max_position_embeddings=64,
    num_target_layers=LAYERS,
)
SIZES = {
    "vocab_size": 50,
    "hidden_size": E_,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def qwen() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=False)).eval().requires_grad_(False)
    for layer in model.base_model.layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            layer.self_attn.get_submodule(name).bias.normal_()
    return model


@pytest.fixture(scope="module")
def qwen3() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, use_sliding_window=False)).eval().requires_grad_(False)
    for layer in model.base_model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.weight.normal_(1.0, 0.3)
    return model


@pytest.fixture
def drafter() -> MoADrafter:
    torch.manual_seed(1)
    model = MoADrafter(SHAPE).requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


def seen(target: LlamaForCausalLM, last_layers: int = 0, rows: int = 2, length: int = LENGTH) -> TargetRows:
    tokens = torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(2))
    return target_rows(target, tokens, torch.ones_like(tokens, dtype=torch.bool), last_layers)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def is_same(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-3, atol=1e-3)


# --- keys and values of the target -----------------------------------------------------------------------------------


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
    rows = target_rows(target, torch.full((1, 2), 7), torch.ones(1, 2, dtype=torch.bool), 0)
    first, second = rows.kv[0, :, 0].unflatten(-1, (2, 2, 16)).unbind(0)
    assert_same(first[:, 1], second[:, 1])
    assert not is_same(first[:, 0], second[:, 0])


# --- against transformers' layer and by hand -------------------------------------------------------------------------


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


# --- layer self-attention --------------------------------------------------------------------------------------------


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
    drafter.layer_self_attention.input_layernorm.register_forward_hook(lambda *_: calls.append(drafter.checkpoint_lsa))
    for drafter.checkpoint_lsa in (False, True):
        drafter.zero_grad()
        drafter.memory(kv).square().sum().backward()
        gradients.append([p.grad.clone() for p in drafter.layer_self_attention.parameters() if p.grad is not None])
    assert calls == [False, True, True]
    assert len(gradients[0]) == len(gradients[1]) == 9
    for one, other in zip(*gradients, strict=True):
        assert_same(one, other)


# --- cross-attention and rotary positions ----------------------------------------------------------------------------


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


# --- drafting step by step -------------------------------------------------------------------------------------------


def causal(length: int, new: int | None = None) -> Tensor:
    """The mask of the last ``new`` of ``length`` tokens."""
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    return mask if new is None else mask[:, :, length - new :]


def cut(kv: KV, length: int) -> KV:
    return kv[0][:, :, :length], kv[1][:, :, :length]


def draft_steps(
    drafter: MoADrafter, rows: TargetRows, verified: int, steps: int, last_layers: TargetLayers | None = None
) -> list[Tensor]:
    """Features of ``steps`` queries from position ``verified`` on, one at a time and with caches, when the target has
    keys and values of the ``verified`` tokens before: what enters ``lm_head``."""
    at = torch.arange(verified)[None]
    memory = drafter.absorb(rows.kv[:, :verified], at)
    _, tokens = drafter.read(rows.embeddings[:, :verified], at, causal(verified))
    drafted = [cut(kv, verified) for kv in rows.last_kvs]
    found = []
    for n in range(verified, verified + steps):
        at = torch.tensor([[n]])
        hidden, tokens = drafter.read(rows.embeddings[:, n : n + 1], at, None, tokens)
        feature = drafter.predict(hidden, at, memory)
        if last_layers is not None:
            feature, drafted = last_layers(feature, at, None, drafted)
        found.append(feature[:, 0])
    return found


def whole_sequence(
    drafter: MoADrafter, rows: TargetRows, boundaries: Tensor, last_layers: TargetLayers | None = None
) -> Tensor:
    last = last_verified(boundaries)
    everywhere = torch.zeros(len(boundaries), dtype=torch.bool)
    features = drafter(rows.embeddings, rows.kv, token_mask(last, everywhere), memory_mask(last))
    if last_layers is None:
        return features
    at = torch.arange(LENGTH)[None]
    return last_layers(features, at, two_key_sets(last), rows.last_kvs)[0]


@pytest.mark.parametrize("used", [0, 1, 3])
def test_training_computes_what_drafting_computes(drafter: MoADrafter, target: LlamaForCausalLM, used: int) -> None:
    rows = seen(target, used)
    layers = last_target_layers(target, used) if used else None
    boundaries = torch.zeros(2, LENGTH, dtype=torch.bool)
    starts = [0, 1, 2, 9, 16]
    boundaries[:, starts] = True
    features = whole_sequence(drafter, rows, boundaries, layers)
    for boundary, following in zip(starts, [*starts[1:], LENGTH], strict=True):
        steps = draft_steps(drafter, rows, boundary + 1, following - boundary - 1, layers)
        for step, expected in enumerate(steps, start=1):
            assert_same(features[:, boundary + step], expected)


@pytest.mark.parametrize("used", [0, 1])
def test_another_boundary_gives_another_feature(drafter: MoADrafter, target: LlamaForCausalLM, used: int) -> None:
    """The comparison above would notice a query that sees one verified token too many."""
    rows = seen(target, used)
    layers = last_target_layers(target, used) if used else None
    assert not is_same(draft_steps(drafter, rows, 9, 4, layers)[-1], draft_steps(drafter, rows, 10, 3, layers)[-1])


def test_drafted_keys_and_values_take_part_in_target_layers(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    """Second negative control: the target's own keys and values at drafted positions give something else."""
    rows, layers = seen(target, 1), last_target_layers(target, 1)
    boundaries = torch.zeros(2, LENGTH, dtype=torch.bool)
    boundaries[:, 0] = True
    expected = whole_sequence(drafter, rows, boundaries, layers)
    last = last_verified(boundaries)
    features = drafter(rows.embeddings, rows.kv, token_mask(last, torch.zeros(2, dtype=torch.bool)), memory_mask(last))
    mask = torch.cat((causal(LENGTH), torch.zeros_like(causal(LENGTH))), dim=-1)
    truth, _ = layers(features, torch.arange(LENGTH)[None], mask, rows.last_kvs)
    assert not is_same(truth[:, 5:], expected[:, 5:])


def test_dropped_draft_entries_change_nothing(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    """After a rejection SA's cache is cut back to the root; what follows equals a cache that never had the drafts."""
    rows = seen(target)
    prefix = torch.arange(10)[None]
    _, cache = drafter.read(rows.embeddings[:, :10], prefix, causal(10))
    wrong = rows.embeddings[:, [20, 21, 22]]
    _, with_drafts = drafter.read(wrong, torch.arange(10, 13)[None], causal(13, 3), cache)
    following = rows.embeddings[:, 10:14]
    at = torch.arange(10, 14)[None]
    hidden, kept = drafter.read(following, at, causal(14, 4), cut(with_drafts, 10))
    expected, fresh = drafter.read(rows.embeddings[:, :14], torch.arange(14)[None], causal(14))
    assert_same(hidden, expected[:, 10:])
    for one, other in zip(kept, fresh, strict=True):
        assert_same(one, other)
    stale, _ = drafter.read(following[:, 3:], at[:, 3:], None, with_drafts)
    assert not is_same(stale, expected[:, 13:])


def test_memory_of_tokens_that_come_later_is_appended(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    rows = seen(target)
    at = torch.arange(LENGTH)[None]
    whole = drafter.absorb(rows.kv, at)
    parts = [drafter.absorb(rows.kv[:, a:b], at[:, a:b]) for a, b in ((0, 11), (11, 12), (12, LENGTH))]
    for index in range(2):
        assert_same(torch.cat([part[index] for part in parts], dim=2), whole[index])


# --- the target's last layers ----------------------------------------------------------------------------------------


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
