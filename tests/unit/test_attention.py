"""Which of vLLM's attention layers tree attention can stand in for, and for which rows it does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_specext.engine.verification import attention, prefix_attention
from vllm_specext.engine.verification.attention import attach, wrap_draft_layers, wrap_target_layers
from vllm_specext.engine.verification.prefix_attention import PrefixAttention
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
        kv_cache_dtype="auto",
        attn_backend=SimpleNamespace(get_name=lambda: backend),
    )


def rows(count: int) -> TreeRows:
    nothing = torch.zeros(1, 1, 1, dtype=torch.int32)
    return TreeRows(nothing[0], nothing[0, 0], nothing[0, 0], nothing, count, 1, 1, 1)


def test_a_layer_whose_attention_is_cut_into_chunks_is_refused() -> None:
    chunked = layer()
    chunked.attention_chunk_size = 8192
    with pytest.raises(ConfigurationError, match="attention in chunks"):
        wrap_target_layers([chunked], LEVELS)


def test_a_layer_whose_cache_is_of_a_type_that_nothing_reads_is_refused() -> None:
    """A drafter's may be of another type than the target's, which was looked at before."""
    other = layer()
    other.kv_cache_dtype = "fp8_e5m2"
    with pytest.raises(ConfigurationError, match="keys and values of type fp8_e5m2"):
        wrap_draft_layers([other], LEVELS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alibi_slopes": [0.5]}, "ALiBi"),
        ({"chunk_lookback": 1}, "attention in chunks"),
        ({"sliding_window": (LEVELS - 1, 0)}, f"drafts of {LEVELS} levels, but at most {LEVELS - 1} fit"),
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


def test_a_drafters_layer_does_not_look_at_the_targets_rows_in_metadata_that_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM gives layers that cache alike one metadata object; the drafter reads the step's rows as a chain."""
    monkeypatch.setattr(attention, "tree_attention", lambda *args, **kwargs: called.append("tree"))
    drafts, verifies, does_both = layer(), layer(), layer()
    wrap_draft_layers([drafts, does_both], LEVELS)
    wrap_target_layers([verifies, does_both], LEVELS)
    metadata = SimpleNamespace(num_actual_tokens=5)
    attach(metadata, rows(5))
    cache = torch.zeros(1, 1, 16, 8)
    for wrapped, expected in ((drafts, "stock"), (verifies, "tree"), (does_both, "tree")):
        called = wrapped.impl.calls
        wrapped.impl.forward(wrapped, None, None, None, cache, metadata, None)
        assert called == [expected]
        called.clear()
        wrapped.impl.forward(wrapped, None, None, None, cache, rows(5), None)
        assert called == ["tree"]


@pytest.mark.parametrize("query", [torch.float8_e4m3fn, torch.bfloat16])
def test_float8_caches_are_read_with_the_scales_that_the_layer_has_at_the_time(
    monkeypatch: pytest.MonkeyPatch, query: torch.dtype
) -> None:
    seen: dict[str, Any] = {}

    def remember(query: Tensor, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> None:
        seen.update(kwargs, keys=keys, values=values)

    monkeypatch.setattr(attention, "tree_attention", remember)
    wrapped = layer()
    wrapped.kv_cache_dtype = "fp8"
    wrap_draft_layers([wrapped], LEVELS)
    wrapped._q_scale, wrapped._k_scale, wrapped._v_scale = scales = torch.tensor([0.5, 2.0, 3.0]).unbind()
    cache = torch.zeros(1, 1, 16, 8, dtype=torch.uint8)
    wrapped.impl.forward(wrapped, torch.zeros(1).to(query), None, None, cache, rows(1), None)
    assert seen["keys"].dtype == seen["values"].dtype == torch.float8_e4m3fn
    assert seen["keys"].data_ptr() == cache.data_ptr()
    assert (seen["k_scale"], seen["v_scale"]) == scales[1:]
    assert seen["q_scale"] is (scales[0] if query == torch.float8_e4m3fn else None)


def test_a_layer_that_skips_quantisation_has_no_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(attention, "tree_attention", lambda *args, **kwargs: seen.update(kwargs))
    wrapped = layer()
    wrap_draft_layers([wrapped], LEVELS)
    wrapped.impl.forward(wrapped, None, None, None, torch.zeros(1, 1, 16, 8), rows(1), None)
    assert seen.keys() == {"scale", "soft_cap", "sliding_window", "sinks"}
    assert seen["sinks"] is None


def test_sinks_are_those_that_the_backend_has_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may convert them when they are loaded."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(attention, "tree_attention", lambda *args, **kwargs: seen.update(kwargs))
    wrapped = layer(sinks=torch.zeros(1, dtype=torch.float16))
    wrap_target_layers([wrapped], LEVELS)
    wrapped.impl.sinks = converted = torch.zeros(1)
    wrapped.impl.forward(wrapped, None, None, None, torch.zeros(1, 1, 16, 8), rows(1), None)
    assert seen["sinks"] is converted


FLASH_3 = {"vllm_flash_attn_version": 3, "sinks": None, "batch_invariant_enabled": False}


@pytest.mark.parametrize(
    ("changes", "splits"),
    [
        ({}, True),
        ({"logits_soft_cap": 30.0}, True),
        ({"vllm_flash_attn_version": 2}, False),
        ({"sliding_window": (127, 0)}, False),
        ({"sinks": torch.zeros(1)}, False),
        ({"batch_invariant_enabled": True}, False),
        ({"kv_cache_dtype": "fp8"}, False),
    ],
    ids=str,
)
def test_prefixes_are_left_to_flash_attention_3_where_the_target_has_it(changes: dict[str, Any], splits: bool) -> None:
    dtype = changes.pop("kv_cache_dtype", "auto")
    wrapped = layer(**FLASH_3 | changes)
    wrapped.kv_cache_dtype = dtype
    wrap_target_layers([wrapped], LEVELS)
    over_prefixes = wrapped.impl.vllm_specext_verifies.over_prefixes
    assert (over_prefixes is not None) is splits
    if splits:
        assert over_prefixes == PrefixAttention(0.125, changes.get("logits_soft_cap") or 0.0)


def test_nodes_are_attended_to_after_prefixes_by_the_targets_layers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = layer(**FLASH_3), layer(**FLASH_3)
    wrap_draft_layers([drafter, target], LEVELS)
    wrap_target_layers([target], LEVELS)
    called: list[Any] = []

    def over_prefixes(self: PrefixAttention, query: Tensor, *others: Any) -> str:
        called.append("prefixes")
        return "sums"

    monkeypatch.setattr(PrefixAttention, "__call__", over_prefixes)
    monkeypatch.setattr(attention, "tree_attention", lambda *args, **kwargs: called.append("tree"))
    monkeypatch.setattr(prefix_attention, "attend_to_nodes", lambda *args, **told: called.append((args[-1], told)))
    metadata, cache = SimpleNamespace(num_actual_tokens=5), torch.zeros(1, 1, 16, 8)
    attach(metadata, rows(5))
    target.impl.forward(target, None, None, None, cache, metadata, None)
    assert called == ["prefixes", ("sums", {"scale": 0.125, "soft_cap": 0.0})]
    called.clear()
    drafter.impl.forward(drafter, None, None, None, cache, rows(5), None)
    assert called == ["tree"]


def test_no_compiler_pass_may_ask_a_wrapped_layer_for_a_quantised_result() -> None:
    wrapped = layer(fused_output_quant_supported=lambda quant_key: True)
    wrap_draft_layers([wrapped], LEVELS)
    assert not wrapped.impl.fused_output_quant_supported(None)
