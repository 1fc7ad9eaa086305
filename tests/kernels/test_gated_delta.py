"""The gated delta rule over draft trees against plain decoding row by row, in float64.

Every test here runs in torch, with the Triton kernels on a GPU, and with them under Triton's interpreter
(``cases/case_gated_delta.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bodies import GPU, choose
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.kernels import gated_delta
from vllm_specext.kernels.gated_delta import BlockEnds, GatedDeltaLayer, GatedDeltaRows, KeptRows, rows_before
from vllm_specext.tree.topology import pack

Rule = Any
"""Something with ``attend`` and ``advance``."""

CHAIN = (0, 0, 1, 2, 3, 4)
BUSHY = (0, 0, 0, 1, 1, 2, 3, 5, 6)
PADDED = (0, 0, 1, 3, 4)  # the last two are nobody's children
EXACT = {torch.float32: {"atol": 2e-5, "rtol": 2e-5}, torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2}}
"""In bfloat16 what the convolution gives is rounded, up or down where the last bit of float32 decides."""
SHAPES: dict[str, dict[str, Any]] = {
    "alike": {"key_heads": 2, "value_heads": 2, "keys": 16, "values": 16},
    "grouped": {"key_heads": 2, "value_heads": 6, "keys": 24, "values": 40},
    "wide": {"key_heads": 1, "value_heads": 3, "keys": 32, "values": 72, "taps": 2},
}


@pytest.fixture(params=["torch", GPU])
def rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Rule:
    choose(request.param, monkeypatch)
    if request.param == "GPU":
        return SimpleNamespace(attend=on_gpu(gated_delta.attend), advance=on_gpu(gated_delta.advance))
    return gated_delta


def on_gpu(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` of tensors that lie on the CPU, and are written there."""

    def run(*arguments: Any) -> None:
        pairs: list[tuple[Tensor, Tensor]] = []

        def there(value: Any) -> Any:
            if isinstance(value, Tensor):
                storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
                copy = storage.cuda().as_strided(value.shape, value.stride(), value.storage_offset())
                pairs.append((value, copy))
                return copy
            if isinstance(value, BlockEnds | GatedDeltaLayer | GatedDeltaRows | KeptRows):
                own = {field.name: there(getattr(value, field.name)) for field in fields(value)}
                return replace(value, **own)
            return [there(each) for each in value] if isinstance(value, list) else value

        function(*(there(argument) for argument in arguments))
        for value, copy in pairs:
            value.copy_(copy)

    return run


def make_layer(
    key_heads: int,
    value_heads: int,
    keys: int,
    values: int,
    taps: int = 4,
    dtype: torch.dtype = torch.float32,
    slots: int = 5,
) -> GatedDeltaLayer:
    channels = 2 * key_heads * keys + value_heads * values
    # As on a GPU: values by keys, and inputs by places, with more between the slots.
    states = torch.randn(slots, value_heads * values * keys + 3)[:, :-3].unflatten(1, (value_heads, values, keys))
    conv_states = torch.randn(slots, taps - 1, channels).to(dtype)
    return GatedDeltaLayer(
        conv_weight=(torch.randn(channels, taps) / 2).to(dtype),
        decay=torch.rand(value_heads) * 3 - 3,
        step_bias=torch.randn(value_heads),
        conv_states=conv_states.transpose(1, 2),
        states=states.transpose(2, 3),
        key_heads=key_heads,
    )


def ancestors(parents: Sequence[int], node: int) -> list[int]:
    """Root first, ``node`` last. A node that is its own parent has none, the root included."""
    path = [node]
    while parents[path[0]] != path[0]:
        path.insert(0, parents[path[0]])
    return path


def make_rows(trees: Sequence[Sequence[int]], nodes: int, taps: int) -> GatedDeltaRows:
    sees = torch.zeros(len(trees), nodes, nodes, dtype=torch.bool)
    for tree, own in zip(trees, sees, strict=True):
        for node in range(len(tree)):
            own[node, ancestors(tree, node)] = True
    counts = torch.tensor([0, *map(len, trees)])
    visible = pack(sees)
    levels = max((len(ancestors(tree, node)) for tree in trees for node in range(len(tree))), default=1) - 1
    starts = counts.cumsum(0).to(torch.int32)
    return GatedDeltaRows(starts, visible, rows_before(visible, taps), int(starts[-1]), levels)


def decoded(
    mixed: Tensor, a: Tensor, b: Tensor, layer: GatedDeltaLayer, slot: int, path: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Row by row along ``path``: what the last row gets, the state after it, and the last inputs."""
    state, last = layer.states[slot].double(), layer.conv_states[slot].double()
    group = layer.value_heads // layer.key_heads
    result = torch.zeros_like(state[:, 0])
    for row in path:
        inputs = torch.cat((last, mixed[row, :, None].double()), dim=1)
        last = inputs[:, 1:]
        rounded = F.silu((inputs * layer.conv_weight.double()).sum(dim=1)).to(mixed.dtype).double()
        for head in range(layer.value_heads):
            query, key = (each[head // group] for each in layer.heads(rounded)[:2])
            query, key = (each / (each.square().sum() + 1e-6).sqrt() for each in (query, key))
            step = F.softplus(a[row, head].double() + layer.step_bias[head].double())
            state[head] *= (-layer.decay[head].double().exp() * step).exp()
            update = b[row, head].double().sigmoid() * (layer.heads(rounded)[2][head] - state[head].T @ key)
            state[head] += torch.outer(key, update)
            result[head] = state[head].T @ query * len(key) ** -0.5
    return result, state, last


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "trees", [[BUSHY], [CHAIN, BUSHY, (0,), PADDED], [(0,), (0,)], [range(0)]], ids=["one", "four", "roots", "no rows"]
)
def test_nodes_get_what_their_paths_do(rule: Rule, shape: str, dtype: torch.dtype, trees: list[Sequence[int]]) -> None:
    torch.manual_seed(0)
    layer = make_layer(**SHAPES[shape], dtype=dtype)
    rows = make_rows(trees, nodes=max(map(len, trees)) + 1, taps=layer.taps)
    count = rows.num_rows + 2
    mixed, a, b, kept, out = tensors(layer, count, dtype)
    slots = torch.tensor([3, 1, 4, 0], dtype=torch.int32)[: len(trees)]
    states, inputs = layer.states.clone(), layer.conv_states.clone()
    rule.attend(mixed, a, b, layer, rows, slots, kept, 1, out)
    for request, tree in enumerate(trees):
        for node in range(len(tree)):
            path = [int(rows.starts[request]) + each for each in ancestors(tree, node)]
            expected, _, _ = decoded(mixed, a, b, layer, int(slots[request]), path)
            torch.testing.assert_close(out[path[-1]].double(), expected, **EXACT[dtype])
    assert out[rows.num_rows :].isnan().all()  # others' rows
    assert torch.equal(layer.states, states)
    assert torch.equal(layer.conv_states, inputs)
    own = slice(rows.num_rows)
    assert torch.equal(kept.mixed[1, own], mixed[own])
    assert torch.equal(kept.gates[1, own], torch.cat((a, b), dim=1)[own])
    assert kept.mixed[0].isnan().all()
    assert kept.gates[0].isnan().all()


def tensors(layer: GatedDeltaLayer, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, KeptRows, Tensor]:
    """What a step of ``count`` rows has, as parts of wider tensors, and what is to be written."""
    heads, channels = layer.value_heads, layer.conv_weight.shape[0]
    mixed = torch.randn(count, channels + 5).to(dtype)[:, :channels]
    a, b = torch.randn(count, 2 * heads).to(dtype).chunk(2, dim=1)
    kept = KeptRows(
        torch.full((2, count, channels), torch.nan, dtype=dtype),
        torch.full((2, count, 2 * heads), torch.nan, dtype=dtype),
    )
    return mixed, a, b, kept, torch.full((count, heads, layer.states.shape[3]), torch.nan, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_go_on_along_paths(rule: Rule, shape: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    layers = [make_layer(**SHAPES[shape], dtype=dtype) for _ in range(2)]
    before = [(layer.states.clone(), layer.conv_states.clone()) for layer in layers]
    paths = [[0, 2, 5, 7, 8], [9], [10, 12]]
    path = torch.tensor([each + each[:1] * (6 - len(each)) for each in paths])
    counts = torch.tensor([len(each) for each in paths], dtype=torch.int32)
    slots = [torch.tensor(each, dtype=torch.int32) for each in ([4, 0, 2], [1, 3, 0])]
    heads, channels = layers[0].value_heads, layers[0].conv_weight.shape[0]
    kept = KeptRows(torch.randn(2, 14, channels).to(dtype), torch.randn(2, 14, 2 * heads).to(dtype))
    expected = [
        [decoded(mixed, *gates.chunk(2, dim=1), layer, int(slot), rows) for slot, rows in zip(own, paths, strict=True)]
        for layer, mixed, gates, own in zip(layers, kept.mixed, kept.gates, slots, strict=True)
    ]
    rule.advance(layers, kept, slots, path, counts)
    for layer, (states, inputs), own, requests in zip(layers, before, slots, expected, strict=True):
        for slot, (_, state, last) in zip(own.tolist(), requests, strict=True):
            torch.testing.assert_close(layer.states[slot].double(), state, **EXACT[dtype])
            assert torch.equal(layer.conv_states[slot].double(), last)
        others = [slot for slot in range(5) if slot not in own]
        assert torch.equal(layer.states[others], states[others])
        assert torch.equal(layer.conv_states[others], inputs[others])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_stay_where_blocks_end(rule: Rule, shape: str, dtype: torch.dtype) -> None:
    """On the way of the first path, at the end of the second, and nowhere on the others, of which one has not come to
    its end, and one has no other block to leave them in."""
    torch.manual_seed(3)
    layers = [make_layer(**SHAPES[shape], dtype=dtype, slots=9) for _ in range(2)]
    before = [(layer.states.clone(), layer.conv_states.clone()) for layer in layers]
    paths = [[0, 2, 5, 7, 8], [10, 12], [9], [1, 3, 4]]
    path = torch.tensor([each + each[:1] * (6 - len(each)) for each in paths])
    counts = torch.tensor([len(each) for each in paths], dtype=torch.int32)
    slots = [torch.tensor(each, dtype=torch.int32) for each in ([4, 0, 2, 8], [1, 3, 0, 6])]
    ends = BlockEnds(
        [torch.tensor(each, dtype=torch.int32) for each in ([7, 5, 3, 8], [5, 4, 7, 6])],
        torch.tensor([2, 2, 2, 3], dtype=torch.int32),
    )
    heads, channels = layers[0].value_heads, layers[0].conv_weight.shape[0]
    kept = KeptRows(torch.randn(2, 14, channels).to(dtype), torch.randn(2, 14, 2 * heads).to(dtype))
    rule.advance(layers, kept, slots, path, counts, ends)
    for place, (layer, (states, inputs)) in enumerate(zip(layers, before, strict=True)):
        old, gates = replace(layer, states=states, conv_states=inputs), kept.gates[place].chunk(2, dim=1)
        own, there = slots[place].tolist(), ends.slots[place].tolist()
        expected = {slot: (slot, rows) for slot, rows in zip(own, paths, strict=True)}
        expected |= {there[request]: (own[request], paths[request][:2]) for request in (0, 1)}
        for slot, (begin, rows) in expected.items():
            _, state, last = decoded(kept.mixed[place], *gates, old, begin, rows)
            torch.testing.assert_close(layer.states[slot].double(), state, **EXACT[dtype])
            assert torch.equal(layer.conv_states[slot].double(), last)
        others = [slot for slot in range(9) if slot not in expected]
        assert torch.equal(layer.states[others], states[others])
        assert torch.equal(layer.conv_states[others], inputs[others])


def test_a_long_chain_is_solved_level_by_level(rule: Rule) -> None:
    """Of sixty rows with the same keys and hardly any decay, whose system has no small powers."""
    torch.manual_seed(2)
    layer = make_layer(**SHAPES["alike"])
    layer.decay.fill_(-9)
    layer.conv_states.fill_(0.5)
    nodes = 60
    rows = make_rows([[0, *range(nodes - 1)]], nodes, layer.taps)
    mixed, a, b, kept, out = tensors(layer, nodes, torch.float32)
    mixed.fill_(0.5)
    b.fill_(3)
    rule.attend(mixed, a, b, layer, rows, torch.tensor([2], dtype=torch.int32), kept, 0, out)
    for node in (0, 1, 30, 59):
        expected, _, _ = decoded(mixed, a, b, layer, 2, range(node + 1))
        torch.testing.assert_close(out[node].double(), expected, atol=1e-4, rtol=1e-4)


def test_rows_before_are_the_nearest_ancestors() -> None:
    rows = make_rows([BUSHY, PADDED], nodes=9, taps=4)
    assert rows.before[0].tolist() == [
        [-1, -2, -3],
        [0, -1, -2],
        [0, -1, -2],
        [1, 0, -1],
        [1, 0, -1],
        [2, 0, -1],
        [3, 1, 0],
        [5, 2, 0],
        [6, 3, 1],
    ]
    assert rows.before[1, 3:5].tolist() == [[-1, -2, -3]] * 2
