"""What backends are told of requests whose rows tree attention writes."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadata
from vllm.v1.attention.backends.triton_attn import TritonAttentionMetadata

from vllm_specext.engine.verification import attention
from vllm_specext.engine.verification.attention import attach, wrap_target_layers
from vllm_specext.engine.verification.other_rows import BY_REQUEST, for_others
from vllm_specext.kernels.tree_attention import TreeRows

LENS = [1005, 503, 200, 90]
COUNTS = [5, 3]
"""Rows of the first two requests, which are trees; the others read prompts."""


def metadata(kind: Any) -> Any:
    known = {
        "num_actual_tokens": 5 + 3 + 100 + 90,
        "query_start_loc": torch.tensor([0, 5, 8, 108, 198], dtype=torch.int32),
        "seq_lens": torch.tensor(LENS, dtype=torch.int32),
        "scheduler_metadata": torch.arange(4),
    }
    return kind(**{field.name: known.get(field.name, f"its {field.name}") for field in fields(kind)})


def rows() -> TreeRows:
    nothing = torch.zeros(1, 1, 1, dtype=torch.int32)
    starts = torch.tensor([0, *COUNTS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return TreeRows(nothing[0].expand(2, 1), starts, nothing[0, 0], nothing, sum(COUNTS), max(COUNTS), 5, 1010)


@pytest.mark.parametrize("kind", [FlashAttentionMetadata, TritonAttentionMetadata])
def test_requests_with_trees_are_as_long_as_their_rows(kind: Any) -> None:
    stock, trees = metadata(kind), rows()
    told = for_others(stock, trees)
    assert isinstance(told, kind)
    assert (told.seq_lens.tolist(), told.seq_lens.dtype) == ([*COUNTS, *LENS[2:]], torch.int32)
    assert stock.seq_lens.tolist() == LENS  # a drafter reads them
    others = [field.name for field in fields(kind) if field.name != "seq_lens"]
    assert all(getattr(told, name) is getattr(stock, name) for name in others)
    assert for_others(stock, trees) is told
    assert for_others(stock, rows()) is not told


def test_other_backends_are_told_what_vllm_tells_them() -> None:
    stock = SimpleNamespace(seq_lens=torch.tensor(LENS))
    assert for_others(stock, rows()) is stock
    assert {FlashAttentionMetadata.__name__, TritonAttentionMetadata.__name__} == BY_REQUEST


def test_the_backend_of_a_targets_layer_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    impl = SimpleNamespace(scale=0.125, logits_soft_cap=None, sliding_window=(-1, -1), sinks=None)
    impl.forward = lambda *tensors, output: told.append(tensors[5])
    backend = SimpleNamespace(get_name=lambda: "FLASH_ATTN")
    layer = SimpleNamespace(layer_name="model.layers.0.attn", impl=impl, kv_cache_dtype="auto", attn_backend=backend)
    monkeypatch.setattr(attention, "tree_attention", lambda *args, **kwargs: None)
    wrap_target_layers([layer], levels=4)
    stock, trees = metadata(FlashAttentionMetadata), rows()
    attach(stock, trees)
    for _ in range(2):
        layer.impl.forward(layer, None, None, None, torch.zeros(1, 1, 16, 8), stock, output=None)
    assert told[0] is told[1]
    assert told[0].seq_lens.tolist() == [*COUNTS, *LENS[2:]]
