"""What FlashAttention 3 is told about the prefixes of trees."""

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.v1.attention.backends import fa_utils

from vllm_specext.engine.verification import prefix_attention
from vllm_specext.engine.verification.prefix_attention import BYTES_OF_PARTS, PrefixAttention, most_parts
from vllm_specext.kernels.tree_attention import TreeRows

HEADS, KV_HEADS, SIZE, PAGE_SIZE = 32, 8, 128, 16
SOURCE = Path(str(find_spec("vllm").origin)).parent / "vllm_flash_attn" / "flash_attn_interface.py"  # type: ignore[union-attr]


def rows(requests: int, each: int, count: int | None = None) -> TreeRows:
    return TreeRows(
        block_table=torch.zeros(requests, 64, dtype=torch.int32),
        query_start_loc=torch.arange(0, requests * each + 1, each, dtype=torch.int32),
        prefix_lens=torch.full((requests,), 500),
        visible=torch.zeros(requests, each, 2, dtype=torch.int32),
        num_rows=requests * each if count is None else count,
        max_query_len=each,
        num_nodes=each,
        max_seq_len=1024,
    )


def inputs(trees: TreeRows, kv_heads: int = KV_HEADS) -> tuple[Tensor, Tensor, Tensor]:
    cache = torch.zeros(4, kv_heads, PAGE_SIZE, 2 * SIZE, dtype=torch.bfloat16)
    keys, values = cache.chunk(2, dim=-1)
    return torch.zeros(trees.num_rows + 3, HEADS, SIZE, dtype=torch.bfloat16), keys, values


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """What the two functions of vLLM's are called with."""
    calls: dict[str, list[dict[str, Any]]] = {"flash_attn_varlen_func": [], "get_scheduler_metadata": []}

    def attend(**given: Any) -> tuple[Tensor, str]:
        calls["flash_attn_varlen_func"].append(given)
        return given["out"], "sums"

    def schedule(**given: Any) -> str:
        calls["get_scheduler_metadata"].append(given)
        return f"schedule {len(calls['get_scheduler_metadata'])}"

    monkeypatch.setattr(fa_utils, "flash_attn_varlen_func", attend, raising=False)
    monkeypatch.setattr(fa_utils, "get_scheduler_metadata", schedule, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    gpu = SimpleNamespace(count=132)
    monkeypatch.setattr(prefix_attention, "Processors", SimpleNamespace(of=lambda device: gpu))
    return calls


def parameters(name: str) -> set[str]:
    """Of a function in vLLM's source, which cannot be imported without a GPU's extensions."""
    functions = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.FunctionDef))
    arguments = next(function.args for function in functions if function.name == name)
    return {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}


def test_prefixes_are_attended_to_without_a_mask_and_up_to_where_the_trees_begin(told: Any) -> None:
    trees = rows(3, 5)
    query, keys, values = inputs(trees)
    out = torch.empty_like(query)
    assert PrefixAttention(0.25, 30.0)(query, keys, values, trees, out) == "sums"
    (given,), (schedule,) = told["flash_attn_varlen_func"], told["get_scheduler_metadata"]
    assert (given["causal"], schedule["causal"]) == (False, False)
    assert given["q"].shape == given["out"].shape == (15, HEADS, SIZE)
    assert given["out"].data_ptr() == out.data_ptr()
    assert given["k"].shape == given["v"].shape == (4, PAGE_SIZE, KV_HEADS, SIZE)
    assert given["seqused_k"].dtype == schedule["cache_seqlens"].dtype == torch.int32
    assert given["seqused_k"].tolist() == schedule["cache_seqlens"].tolist() == [500] * 3
    assert given["num_splits"] == schedule["num_splits"]
    assert (given["softmax_scale"], given["softcap"], schedule["has_softcap"]) == (0.25, 30.0, True)
    assert given["scheduler_metadata"] == "schedule 1"
    for name, calls in told.items():
        assert calls[0].keys() <= parameters(name)


def test_layers_of_one_step_share_a_schedule_and_others_have_their_own(told: Any) -> None:
    trees = rows(2, 60)
    layers = [PrefixAttention(0.25, 0.0), PrefixAttention(0.5, 0.0), PrefixAttention(0.25, 30.0)]
    for attend in layers:
        query, keys, values = inputs(trees)
        attend(query, keys, values, trees, torch.empty_like(query))
    query, keys, values = inputs(trees, kv_heads=4)
    layers[0](query, keys, values, trees, torch.empty_like(query))
    query, keys, values = inputs(rows(2, 60))
    layers[0](query, keys, values, rows(2, 60), torch.empty_like(query))
    used = [given["scheduler_metadata"] for given in told["flash_attn_varlen_func"]]
    assert used == [f"schedule {number}" for number in (1, 1, 2, 3, 4)]


def test_a_graph_does_not_use_the_schedule_of_a_pass_before_its_capture(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = rows(2, 60)
    for captured in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda captured=captured: captured)
        query, keys, values = inputs(trees)
        PrefixAttention(0.25, 0.0)(query, keys, values, trees, torch.empty_like(query))
    used = [given["scheduler_metadata"] for given in told["flash_attn_varlen_func"]]
    assert used == ["schedule 1", "schedule 2"]


def test_a_step_without_rows_launches_nothing(told: Any) -> None:
    trees = rows(2, 60, count=0)
    query, keys, values = inputs(trees)
    sums = PrefixAttention(0.25, 0.0)(query, keys, values, trees, torch.empty_like(query))
    assert sums.shape == (HEADS, 0)
    assert not any(told.values())


@pytest.mark.parametrize(
    ("requests", "each", "kv_heads", "parts"),
    [
        (1, 60, 8, 8),  # two tiles of 8 heads
        (1, 5, 8, 16),
        (1, 60, 1, 8),  # 15 tiles
        (1, 4, 1, 32),  # as many as vLLM allows
        (1, 128, 32, 4),
        (1, 64, 132, 1),
        (64, 32, 8, 4),  # for want of room
        (256, 60, 8, 1),
    ],
)
def test_prefixes_are_cut_into_as_many_parts_as_fill_the_gpu_and_there_is_room_for(
    requests: int, each: int, kv_heads: int, parts: int
) -> None:
    trees = rows(requests, each)
    query = torch.empty(trees.num_rows, max(HEADS, kv_heads), SIZE, device="meta")
    keys = torch.empty(4, kv_heads, PAGE_SIZE, SIZE, device="meta")
    assert most_parts(query, keys, trees, 132) == parts
    assert parts == 1 or parts * query.numel() * 4 <= BYTES_OF_PARTS
