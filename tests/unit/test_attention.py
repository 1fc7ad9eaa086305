"""Which of vLLM's attention layers tree attention can stand in for, and for which rows it does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_specext.engine import attention
from vllm_specext.engine.attention import attach, wrap_draft_layers, wrap_target_layers
from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.tree_attention import TreeRows

LEVELS = 6


def layer(backend: str = "FLASH_ATTN", **changes: Any) -> Any:
    calls: list[str] = []
    impl = {"scale": 0.125, "logits_soft_cap": None, "sliding_window": (-1, -1), "calls": calls} | changes
    impl["forward"] = lambda *args, **kwargs: calls.append("stock")
    return SimpleNamespace(
        layer_name="model.layers.0.attn",
        impl=SimpleNamespace(**impl),
        attn_backend=SimpleNamespace(get_name=lambda: backend),
    )


def rows(count: int) -> TreeRows:
    nothing = torch.zeros(1, 1, 1, dtype=torch.int32)
    return TreeRows(nothing[0], nothing[0, 0], nothing[0, 0], nothing, count, 1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sinks": torch.zeros(1)}, "attention sinks"),
        ({"alibi_slopes": [0.5]}, "ALiBi"),
        ({"kv_sharing_target_layer_name": "model.layers.1.attn"}, "keys and values of another layer"),
        ({"sliding_window": (LEVELS - 1, 0)}, f"'tree_depth' is {LEVELS}, but at most {LEVELS - 1} fits"),
        ({"backend": "FLASHINFER"}, "attention backend FLASHINFER"),
    ],
)
def test_a_layer_that_tree_attention_cannot_do_is_refused(changes: dict[str, Any], said: str) -> None:
    wrap_target_layers([layer()], LEVELS)
    with pytest.raises(ConfigurationError, match=said):
        wrap_target_layers([layer(**changes)], LEVELS)


@pytest.mark.parametrize(
    ("window", "positions"), [(None, 0), (-1, 0), ((-1, -1), 0), (128, 128), ((127, 0), 128)], ids=str
)
def test_windows_are_counted_as_the_backends_count_them(
    monkeypatch: pytest.MonkeyPatch, window: Any, positions: int
) -> None:
    """FlashAttention's pair leaves the token itself out, the CPU's number counts it."""
    seen = []
    monkeypatch.setattr(attention, "tree_attention", lambda *args, **kwargs: seen.append(kwargs["sliding_window"]))
    wrapped = layer(sliding_window=window)
    wrap_draft_layers([wrapped], LEVELS)
    wrapped.impl.forward(wrapped, None, None, None, torch.zeros(1, 1, 16, 8), rows(1), None)
    assert seen == [positions]


def test_tree_attention_runs_where_the_metadata_has_rows_and_the_backend_for_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrapped = layer()
    monkeypatch.setattr(attention, "tree_attention", lambda *args, **kwargs: wrapped.impl.calls.append("tree"))
    wrap_target_layers([wrapped], LEVELS)

    def kernels(metadata: Any) -> list[str]:
        wrapped.impl.calls.clear()
        wrapped.impl.forward(wrapped, None, None, None, torch.zeros(1, 1, 16, 8), metadata, None)
        return list(wrapped.impl.calls)

    metadata = SimpleNamespace(num_actual_tokens=5)
    assert kernels(metadata) == ["stock"]
    attach(metadata, rows(5))
    assert kernels(metadata) == ["tree"]
    attach(metadata, rows(3))
    assert kernels(metadata) == ["stock", "tree"]
