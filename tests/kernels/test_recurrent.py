"""Recurrent layers over draft trees against plain decoding row by row, in float64.

Every test here runs in torch, with the Triton kernels on a GPU, and with them under Triton's interpreter
(``cases/case_recurrent.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bodies import GPU, choose
from recurrent_kinds import KINDS, Kind
from torch import Tensor

from vllm_specext.kernels.recurrent import BlockEnds, KeptRows, RecurrentLayer, TreeRows, rows_before
from vllm_specext.tree.topology import pack

Rules = Callable[[Kind], Any]
"""Something with ``attend`` and ``advance`` for a kind of layers."""

CHAIN = (0, 0, 1, 2, 3, 4)
BUSHY = (0, 0, 0, 1, 1, 2, 3, 5, 6)
PADDED = (0, 0, 1, 3, 4)  # the last two are nobody's children
EXACT = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Share of the largest number that others may differ by. In bfloat16 what the convolution gives is rounded, up or down
where the last bit of float32 decides; Triton's interpreter cuts bits off instead."""
every_shape = pytest.mark.parametrize(
    ("kind", "shape"), [(kind, shape) for kind in KINDS for shape in KINDS[kind].shapes]
)
types = pytest.mark.parametrize(
    ("dtype", "state_type"),
    [
        pytest.param(torch.float32, torch.float32, id="float32"),
        pytest.param(torch.bfloat16, torch.float32, id="bfloat16"),
        pytest.param(torch.bfloat16, torch.bfloat16, id="states in bfloat16", marks=pytest.mark.extended),
    ],
)


@pytest.fixture(params=["torch", GPU])
def rules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Rules:
    choose(request.param, monkeypatch)
    if request.param == "GPU":
        return lambda kind: SimpleNamespace(attend=on_gpu(kind.rule.attend), advance=on_gpu(kind.rule.advance))
    return lambda kind: kind.rule


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
            if isinstance(value, BlockEnds | RecurrentLayer | TreeRows | KeptRows):
                own = {field.name: there(getattr(value, field.name)) for field in fields(value)}
                return replace(value, **own)
            return [there(each) for each in value] if isinstance(value, list) else value

        function(*(there(argument) for argument in arguments))
        for value, copy in pairs:
            value.copy_(copy)

    return run


def make_layer(
    kind: str,
    shape: str,
    dtype: torch.dtype = torch.float32,
    state_type: torch.dtype = torch.float32,
    slots: int = 5,
) -> Any:
    layer = KINDS[kind].make(dtype, slots, **KINDS[kind].shapes[shape])
    return replace(layer, states=layer.states.to(state_type))


def assert_alike(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual.double(), expected, atol=EXACT[dtype] * largest, rtol=EXACT[dtype])


def ancestors(parents: Sequence[int], node: int) -> list[int]:
    """Root first, ``node`` last. A node that is its own parent has none, the root included."""
    path = [node]
    while parents[path[0]] != path[0]:
        path.insert(0, parents[path[0]])
    return path


def make_rows(trees: Sequence[Sequence[int]], nodes: int, taps: int) -> TreeRows:
    sees = torch.zeros(len(trees), nodes, nodes, dtype=torch.bool)
    for tree, own in zip(trees, sees, strict=True):
        for node in range(len(tree)):
            own[node, ancestors(tree, node)] = True
    counts = torch.tensor([0, *map(len, trees)])
    visible = pack(sees)
    levels = max((len(ancestors(tree, node)) for tree in trees for node in range(len(tree))), default=1) - 1
    starts = counts.cumsum(0).to(torch.int32)
    return TreeRows(starts, visible, rows_before(visible, taps), int(starts[-1]), levels)


def tensors(
    kind: str, layer: RecurrentLayer, count: int, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor], KeptRows, Tensor]:
    """What a step of ``count`` rows has, as parts of wider tensors, and what is to be written."""
    heads, gates = layer.heads, KINDS[kind].gates
    mixed = torch.randn(count, layer.channels + 5).to(dtype)[:, : layer.channels]
    given = [*torch.randn(count, gates * heads + 1).to(dtype)[:, 1:].chunk(gates, dim=1)]
    kept = KeptRows(
        torch.full((2, count, layer.channels), torch.nan, dtype=dtype),
        torch.full((2, count, gates * heads), torch.nan, dtype=dtype),
    )
    width = layer.states.shape[2 if kind == "space" else 3]
    return mixed, given, kept, torch.full((count, heads, width), torch.nan, dtype=dtype)


def kept_rows(kind: str, layer: RecurrentLayer, count: int, dtype: torch.dtype) -> KeptRows:
    """Of two layers."""
    gates = torch.randn(2, count, KINDS[kind].gates * layer.heads)
    return KeptRows(torch.randn(2, count, layer.channels).to(dtype), gates.to(dtype))


@every_shape
@types
@pytest.mark.parametrize(
    "trees", [[BUSHY], [CHAIN, BUSHY, (0,), PADDED], [(0,), (0,)], [range(0)]], ids=["one", "four", "roots", "no rows"]
)
def test_nodes_get_what_their_paths_do(
    rules: Rules, kind: str, shape: str, dtype: torch.dtype, state_type: torch.dtype, trees: list[Sequence[int]]
) -> None:
    torch.manual_seed(0)
    layer = make_layer(kind, shape, dtype, state_type)
    rows = make_rows(trees, nodes=max(map(len, trees)) + 1, taps=layer.taps)
    count = rows.num_rows + 2
    mixed, given, kept, out = tensors(kind, layer, count, dtype)
    gates = torch.cat(given, dim=1)
    slots = torch.tensor([3, 1, 4, 0], dtype=torch.int32)[: len(trees)]
    states, inputs = layer.states.clone(), layer.conv_states.clone()
    rules(KINDS[kind]).attend(mixed, given, layer, rows, slots, kept, 1, out)
    for request, tree in enumerate(trees):
        for node in range(len(tree)):
            path = [int(rows.starts[request]) + each for each in ancestors(tree, node)]
            expected, _, _ = KINDS[kind].decoded(mixed, gates, layer, int(slots[request]), path)
            assert_alike(out[path[-1]], expected, dtype)
    assert out[rows.num_rows :].isnan().all()  # others' rows
    assert torch.equal(layer.states, states)
    assert torch.equal(layer.conv_states, inputs)
    own = slice(rows.num_rows)
    assert torch.equal(kept.mixed[1, own], mixed[own])
    assert torch.equal(kept.gates[1, own], gates[own])
    assert kept.mixed[0].isnan().all()
    assert kept.gates[0].isnan().all()


@every_shape
@types
def test_states_go_on_along_paths(
    rules: Rules, kind: str, shape: str, dtype: torch.dtype, state_type: torch.dtype
) -> None:
    torch.manual_seed(1)
    layers = [make_layer(kind, shape, dtype, state_type) for _ in range(2)]
    before = [(layer.states.clone(), layer.conv_states.clone()) for layer in layers]
    paths = [[0, 2, 5, 7, 8], [9], [10, 12]]
    path = torch.tensor([each + each[:1] * (6 - len(each)) for each in paths])
    counts = torch.tensor([len(each) for each in paths], dtype=torch.int32)
    slots = [torch.tensor(each, dtype=torch.int32) for each in ([4, 0, 2], [1, 3, 0])]
    kept = kept_rows(kind, layers[0], 14, dtype)
    expected = [
        [KINDS[kind].decoded(mixed, gates, layer, int(slot), rows) for slot, rows in zip(own, paths, strict=True)]
        for layer, mixed, gates, own in zip(layers, kept.mixed, kept.gates, slots, strict=True)
    ]
    rules(KINDS[kind]).advance(layers, kept, slots, path, counts)
    for layer, (states, inputs), own, requests in zip(layers, before, slots, expected, strict=True):
        for slot, (_, state, last) in zip(own.tolist(), requests, strict=True):
            assert_alike(layer.states[slot], state, dtype)
            assert torch.equal(layer.conv_states[slot].double(), last)
        others = [slot for slot in range(5) if slot not in own]
        assert torch.equal(layer.states[others], states[others])
        assert torch.equal(layer.conv_states[others], inputs[others])


@every_shape
@types
def test_states_stay_where_blocks_end(
    rules: Rules, kind: str, shape: str, dtype: torch.dtype, state_type: torch.dtype
) -> None:
    """On the way of the first path, at the end of the second, and nowhere on the others, of which one has not come to
    its end, and one has no other block to leave them in."""
    torch.manual_seed(3)
    layers = [make_layer(kind, shape, dtype, state_type, slots=9) for _ in range(2)]
    before = [(layer.states.clone(), layer.conv_states.clone()) for layer in layers]
    paths = [[0, 2, 5, 7, 8], [10, 12], [9], [1, 3, 4]]
    path = torch.tensor([each + each[:1] * (6 - len(each)) for each in paths])
    counts = torch.tensor([len(each) for each in paths], dtype=torch.int32)
    slots = [torch.tensor(each, dtype=torch.int32) for each in ([4, 0, 2, 8], [1, 3, 0, 6])]
    ends = BlockEnds(
        [torch.tensor(each, dtype=torch.int32) for each in ([7, 5, 3, 8], [5, 4, 7, 6])],
        torch.tensor([2, 2, 2, 3], dtype=torch.int32),
    )
    kept = kept_rows(kind, layers[0], 14, dtype)
    rules(KINDS[kind]).advance(layers, kept, slots, path, counts, ends)
    for place, (layer, (states, inputs)) in enumerate(zip(layers, before, strict=True)):
        old = replace(layer, states=states, conv_states=inputs)
        own, there = slots[place].tolist(), ends.slots[place].tolist()
        expected = {slot: (slot, rows) for slot, rows in zip(own, paths, strict=True)}
        expected |= {there[request]: (own[request], paths[request][:2]) for request in (0, 1)}
        for slot, (begin, rows) in expected.items():
            _, state, last = KINDS[kind].decoded(kept.mixed[place], kept.gates[place], old, begin, rows)
            assert_alike(layer.states[slot], state, dtype)
            assert torch.equal(layer.conv_states[slot].double(), last)
        others = [slot for slot in range(9) if slot not in expected]
        assert torch.equal(layer.states[others], states[others])
        assert torch.equal(layer.conv_states[others], inputs[others])


def test_a_long_chain_is_solved_level_by_level(rules: Rules) -> None:
    """Of sixty rows with the same keys and hardly any decay, whose system has no small powers."""
    torch.manual_seed(2)
    layer = make_layer("delta", "alike")
    layer.decay.fill_(-9)
    layer.conv_states.fill_(0.5)
    nodes = 60
    rows = make_rows([[0, *range(nodes - 1)]], nodes, layer.taps)
    mixed, (a, b), kept, out = tensors("delta", layer, nodes, torch.float32)
    mixed.fill_(0.5)
    b.fill_(3)
    slots = torch.tensor([2], dtype=torch.int32)
    rules(KINDS["delta"]).attend(mixed, [a, b], layer, rows, slots, kept, 0, out)
    for node in (0, 1, 30, 59):
        gates = torch.cat((a, b), dim=1)
        expected, _, _ = KINDS["delta"].decoded(mixed, gates, layer, 2, range(node + 1))
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


def test_layers_that_differ_are_no_table() -> None:
    pytest.importorskip("triton")
    from vllm_specext.kernels.recurrent.paths import table_of

    layers = [make_layer("space", shape) for shape in ("alike", "grouped")]
    slots = [torch.zeros(1, dtype=torch.int32)] * 2
    with pytest.raises(ValueError, match="layers with recurrent states differ"):
        table_of(layers, slots, None)
