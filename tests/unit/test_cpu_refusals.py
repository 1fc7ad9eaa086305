from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_specext.cpu_runner import refuse_unsupported
from vllm_specext.engine.shared_pages import refuse_unshared_pages
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import GRIFFIN_TREE, MODELS
from vllm_specext.plugin import register


def config(**changes: Any) -> SimpleNamespace:
    """A configuration that model runner V2 serves on CPU, with `changes` to any of its parts."""
    parts: dict[str, dict[str, Any]] = {
        "model_config": {
            "enable_trace_replay": False,
            "return_sampling_mask": False,
            "is_hybrid": False,
            "is_attention_free": False,
            "architectures": ["LlamaForCausalLM"],
        },
        "parallel_config": {
            "prefill_context_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "enable_batch_sharded_sampling": None,
        },
        "speculative_config": {"method": "eagle", "enable_adaptive_verification": False},
        "cache_config": {"mamba_cache_mode": "none"},
    }
    for values in parts.values():
        values.update((key, changes.pop(key)) for key in list(changes) if key in values)
    return SimpleNamespace(
        watermark_config=changes.get("watermark_config"),
        **{part: SimpleNamespace(**values) for part, values in parts.items()},
    )


def test_a_plain_configuration_is_served() -> None:
    refuse_unsupported(config())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"return_sampling_mask": True}, "return_sampling_mask is True, only False is allowed"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size is 2, only 1 is allowed"),
        ({"enable_batch_sharded_sampling": True}, "enable_batch_sharded_sampling is True"),
        ({"enable_adaptive_verification": True}, "enable_adaptive_verification is True"),
        ({"is_hybrid": True}, "hybrid with other layers than gated delta rules and Mamba-2"),
        ({"mamba_cache_mode": "all"}, "mamba_cache_mode"),
        ({"watermark_config": "keyed"}, "watermark_config is 'keyed'"),
        ({"method": "ngram"}, "speculative method is 'ngram'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_has_no_kernel_body_is_refused_by_name(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        refuse_unsupported(config(**change))
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the pages are shared")
def test_pages_that_two_kinds_of_layers_cannot_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def target(use_mla: bool) -> Any:
        return SimpleNamespace(use_mla=use_mla)

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    with pytest.raises(ConfigurationError, match="kernels want 16 tokens a page for the one and a multiple of 32"):
        refuse_unshared_pages(target(use_mla=True))
    refuse_unshared_pages(target(use_mla=False))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    refuse_unshared_pages(target(use_mla=True))


@pytest.fixture
def on_a_cpu_that_packs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, tuple[torch.dtype, ...]], None]:
    """Make vLLM choose a kernel by its name for some data types, and "vec" for the others."""
    cpu_attn = pytest.importorskip("vllm.v1.attention.backends.cpu_attn")

    def choose(kernel: str, dtypes: tuple[torch.dtype, ...]) -> None:
        def get_attn_isa(dtype: torch.dtype, block_size: int, head_size: int, kv_cache_dtype: str) -> str:
            return kernel if dtype in dtypes and head_size % 32 == block_size % 32 == 0 else "vec"

        monkeypatch.setattr(cpu_attn, "_get_attn_isa", get_attn_isa)

    return choose


def drafting_trees(dtype: torch.dtype, head_size: int = 80, draft_head_size: int = 80) -> SimpleNamespace:
    made = config()
    # As vLLM 0.33 has it here, which takes pages of 128 tokens later on.
    made.cache_config = SimpleNamespace(
        block_size=16, user_specified_block_size=False, cache_dtype="auto", mamba_cache_mode="none"
    )
    made.model_config.dtype = dtype
    made.model_config.get_head_size = lambda: head_size
    made.speculative_config.tree = "a shape"
    made.speculative_config.draft_model_config = SimpleNamespace(get_head_size=lambda: draft_head_size)
    return made


@pytest.mark.parametrize("head_sizes", [(64, 80), (80, 64)], ids=["target", "drafter"])
def test_trees_are_refused_where_pages_are_packed(on_a_cpu_that_packs: Any, head_sizes: tuple[int, int]) -> None:
    on_a_cpu_that_packs("amx", (torch.bfloat16,))
    with pytest.raises(ConfigurationError) as refusal:
        refuse_unsupported(drafting_trees(torch.bfloat16, *head_sizes))
    assert str(refusal.value) == (
        "draft trees on this CPU cannot have --dtype bfloat16, whose pages vLLM packs for amx; "
        "--dtype float32 or float16 works, and tree_top_k 1 drafts chains."
    )


def test_a_server_is_refused_trees_where_its_pages_would_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With vLLM's own configuration, whose size of a page is not final yet with 0.33."""
    arguments = pytest.importorskip("vllm.engine.arg_utils")
    register()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)

    def configure(dtype: str) -> None:
        arguments.EngineArgs(
            str(MODELS / "target"), dtype=dtype, max_model_len=256, speculative_config=GRIFFIN_TREE
        ).create_engine_config()

    configure("float32")
    with pytest.raises(ValueError, match="draft trees on this CPU cannot have --dtype bfloat16"):
        configure("bfloat16")


def test_a_cpu_that_packs_every_data_type_gets_no_advice_to_change_it(on_a_cpu_that_packs: Any) -> None:
    on_a_cpu_that_packs("neon", (torch.float32, torch.float16, torch.bfloat16))
    with pytest.raises(ConfigurationError, match=r"packs for neon; tree_top_k 1 drafts chains\.$"):
        refuse_unsupported(drafting_trees(torch.float32, 64))


def test_trees_on_plain_pages_and_chains_on_any_are_served(on_a_cpu_that_packs: Any) -> None:
    on_a_cpu_that_packs("amx", (torch.bfloat16,))
    refuse_unsupported(drafting_trees(torch.bfloat16))
    refuse_unsupported(drafting_trees(torch.float32, 64))
    chains = drafting_trees(torch.bfloat16, 64)
    chains.speculative_config.tree = None
    refuse_unsupported(chains)
    small = drafting_trees(torch.bfloat16, 64)
    small.cache_config.user_specified_block_size = True
    refuse_unsupported(small)
