"""The plain drafter against tensors that the official classes computed (``tests/data/griffin_case1.pt``)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.oracle import shape_of
from vllm_specext.methods.griffin.model import GriffinDrafter


def prefill(drafter: GriffinDrafter, oracle: dict[str, Any], positions: Tensor | None = None) -> tuple:
    length = oracle["features"].shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    positions = torch.arange(length)[None] if positions is None else positions
    return drafter(oracle["tokens"][:, 1:], oracle["features"], positions, causal)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def is_same(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_prefill_equals_the_official_model(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    predict, regress, (keys, values) = prefill(drafter, oracle)
    assert_same(predict, oracle["prefill"]["predict"])
    assert_same(regress, oracle["prefill"]["regress"])
    assert_same(keys, oracle["prefill"]["kv"][0][0])
    assert_same(values, oracle["prefill"]["kv"][0][1])


def test_intermediate_activations_equal_the_official_model(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    modules = {
        "tgf_h": "fc.fc",
        "tgf_post_norm": "fc.post_attention_layernorm",
        "tgf_z": "fc.mlp.up_proj",
        "tgf_out": "fc",
        "attn_out": "layers.0.self_attn.o_proj",
        "mlp_in_norm": "layers.0.post_attention_layernorm",
        "mlp_out_2d": "layers.0.mlp.down_proj",
    }
    assert modules.keys() == oracle["prefill"]["acts"].keys()
    seen: dict[str, Tensor] = {}
    for name, path in modules.items():
        drafter.get_submodule(path).register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))
    prefill(drafter, oracle)
    for name, expected in oracle["prefill"]["acts"].items():
        assert_same(seen[name], expected)


def test_a_tree_level_equals_the_official_model(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    *_, past = prefill(drafter, oracle)
    step = oracle["step"]
    nodes = step["input_ids"].shape[1]
    sees_prefix = torch.ones(1, 1, nodes, past[0].shape[2], dtype=torch.bool)
    mask = torch.cat((sees_prefix, step["tree_mask"].bool()), dim=-1)
    predict, regress, (keys, values) = drafter(
        step["input_ids"], step["features"], step["position_ids"][None], mask, past
    )
    assert_same(predict, step["predict"])
    assert_same(regress, step["regress"])
    assert_same(keys, step["kv"][0][0])
    assert_same(values, step["kv"][0][1])


def test_a_chain_step_equals_the_official_model(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    _, regress, past = prefill(drafter, oracle)
    length = past[0].shape[2]
    mask = torch.ones(1, 1, 1, length + 1, dtype=torch.bool)
    step = oracle["chain_step"]
    predict, next_regress, _ = drafter(step["input_ids"], regress[:, -1:], torch.tensor([[length]]), mask, past)
    assert_same(predict, step["predict"])
    assert_same(next_regress, step["regress"])


def test_the_state_dict_has_exactly_the_released_names_and_shapes(oracle: dict[str, Any]) -> None:
    shape = shape_of(oracle["config"])
    actual = {name: tuple(tensor.shape) for name, tensor in GriffinDrafter(shape).state_dict().items()}
    assert actual == {name: tuple(tensor.shape) for name, tensor in oracle["state_dict"].items()}
    assert actual == shape.tensor_shapes()


@pytest.mark.parametrize("change", ["swapped heads of down_proj", "positions of the token", "token features swapped"])
def test_a_wrong_model_fails_the_comparison(drafter: GriffinDrafter, oracle: dict[str, Any], change: str) -> None:
    positions = None
    if change == "swapped heads of down_proj":
        weight = drafter.layer.mlp.down_proj.weight
        weight.copy_(weight.roll(weight.shape[0] // 2, dims=0))
    elif change == "positions of the token":
        # Twice as far apart: a shift by one would go unnoticed, for rotary scores depend on distances only.
        positions = 2 * torch.arange(oracle["features"].shape[1])[None]
    else:
        weight = drafter.fc.fc.weight
        weight.copy_(weight.roll(weight.shape[1] // 2, dims=1))
    predict, regress, _ = prefill(drafter, oracle, positions)
    assert not is_same(predict, oracle["prefill"]["predict"])
    assert not is_same(regress, oracle["prefill"]["regress"])


def test_keys_notice_a_position_that_is_off_by_one(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    """The features cannot; the tree level above, whose past is computed separately, can."""
    positions = 1 + torch.arange(oracle["features"].shape[1])[None]
    *_, (keys, _) = prefill(drafter, oracle, positions)
    assert not is_same(keys, oracle["prefill"]["kv"][0][0])


def test_biases_of_queries_keys_and_values_take_part(oracle: dict[str, Any]) -> None:
    shape = shape_of(oracle["config"])
    model = GriffinDrafter(replace(shape, qkv_bias=True)).requires_grad_(False)
    biases = {name for name in model.state_dict() if name.endswith("_proj.bias")}
    assert len(biases) == 3
    model.load_state_dict(
        {**oracle["state_dict"], **{name: torch.zeros_like(model.get_parameter(name)) for name in biases}}
    )
    assert_same(prefill(model, oracle)[0], oracle["prefill"]["predict"])
    model.layer.self_attn.v_proj.bias.fill_(0.5)
    assert not is_same(prefill(model, oracle)[0], oracle["prefill"]["predict"])
