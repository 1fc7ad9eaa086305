"""Every combination that is not supported is refused by name."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.refusals import REFUSALS, Launch, refuse


def launch(**changes: Any) -> Launch:
    parallel = {
        "data_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "use_ubatching": False,
        "enable_batch_sharded_sampling": None,
    }
    model = {
        "is_hybrid": False,
        "is_attention_free": False,
        "use_mla": False,
        "is_encoder_decoder": False,
        "runner_type": "generate",
        "enable_trace_replay": False,
        "return_sampling_mask": False,
        "uses_mrope": False,
        "is_moe": False,
    }
    arguments: dict[str, Any] = {
        "kv_transfer_config": None,
        "watermark_config": None,
        "enable_lora": False,
        "lora_target_modules": None,
    }
    for group in (parallel, model, arguments):
        group.update({key: value for key, value in changes.items() if key in group})
    return Launch(
        SimpleNamespace(**arguments),
        SimpleNamespace(**model),
        SimpleNamespace(**parallel),
        kv_cache_dtype=changes.get("kv_cache_dtype", "auto"),
        drafts_trees=changes.get("drafts_trees", True),
    )


UNSUPPORTED = [
    ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
    ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
    ({"prefill_context_parallel_size": 2}, "--prefill-context-parallel-size"),
    ({"use_ubatching": True}, "--enable-dbo"),
    ({"enable_batch_sharded_sampling": True}, "--enable-batch-sharded-sampling"),
    ({"enable_lora": True}, "--enable-lora"),
    ({"enable_lora": True, "lora_target_modules": ["q_proj", "lm_head"]}, "--lora-target-modules"),
    ({"enable_lora": True, "lora_target_modules": ["language_model.lm_head"]}, "lm_head"),
    ({"kv_transfer_config": object()}, "--kv-transfer-config"),
    ({"is_hybrid": True}, "hybrid"),
    ({"is_attention_free": True}, "attention-free"),
    ({"use_mla": True}, "MLA"),
    ({"is_encoder_decoder": True}, "encoder-decoder"),
    ({"runner_type": "pooling"}, "pooling"),
    ({"watermark_config": {}}, "--watermark-config"),
    ({"enable_trace_replay": True}, "--enable-trace-replay"),
    ({"return_sampling_mask": True}, "--return-sampling-mask"),
    ({"uses_mrope": True}, "M-RoPE"),
    ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
    ({"is_moe": True, "data_parallel_size": 2}, "mixture-of-experts"),
]
"""A change to a launch that is fine, and what the refusal names."""


@pytest.mark.parametrize(("change", "feature"), UNSUPPORTED)
def test_an_unsupported_combination_is_refused_by_name(change: dict[str, Any], feature: str) -> None:
    refuse("griffin", launch())
    with pytest.raises(ConfigurationError) as caught:
        refuse("griffin", launch(**change))
    assert feature in str(caught.value)


def test_every_entry_of_the_table_is_reached_by_a_case_above() -> None:
    launches = [launch(**change) for change, _ in UNSUPPORTED]
    assert [refusal.feature for refusal in REFUSALS if not any(map(refusal.applies, launches))] == []


@pytest.mark.parametrize(
    "change", [{"uses_mrope": True}, {"kv_cache_dtype": "fp8_e4m3"}, {"is_moe": True, "data_parallel_size": 2}]
)
def test_what_only_trees_cannot_do_is_open_to_chains(change: dict[str, Any]) -> None:
    refuse("griffin", launch(**change, drafts_trees=False))
    with pytest.raises(ConfigurationError, match="tree_top_k 1 drafts chains"):
        refuse("griffin", launch(**change))


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_a_cache_in_an_ordinary_data_type_holds_trees(dtype: str) -> None:
    refuse("griffin", launch(kv_cache_dtype=dtype))


def test_adapters_of_other_modules_than_the_output_layer_are_open() -> None:
    refuse("griffin", launch(enable_lora=True, lora_target_modules=["q_proj", "v_proj"]))


def test_ranks_of_a_dense_target_are_independent_and_draft_trees() -> None:
    refuse("griffin", launch(data_parallel_size=2))
