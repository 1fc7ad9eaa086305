"""Launches of vLLM as the table of refusals sees them."""

from types import SimpleNamespace
from typing import Any

from vllm_specext.refusals import Launch


def launch(**changes: Any) -> Launch:
    parallel = {
        "tensor_parallel_size": 1,
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
        "architectures": ["LlamaForCausalLM"],
        "use_mla": False,
        "hf_text_config": SimpleNamespace(**changes.get("text_config", {})),
        "is_encoder_decoder": False,
        "runner_type": "generate",
        "enable_trace_replay": False,
        "return_sampling_mask": False,
        "uses_mrope": False,
        "is_moe": False,
        "is_multimodal_model": False,
        "enable_prompt_embeds": False,
        "skip_tokenizer_init": False,
        "get_sliding_window": lambda: changes.get("sliding_window"),
    }
    arguments: dict[str, Any] = {
        "ec_transfer_config": None,
        "watermark_config": None,
        "enable_lora": False,
        "lora_target_modules": None,
        "kv_sharing_fast_prefill": False,
        "use_replayssm": False,
        "aux_output_config": SimpleNamespace(enabled=False),
    }
    for group in (parallel, model, arguments):
        group.update({key: value for key, value in changes.items() if key in group})
    return Launch(
        SimpleNamespace(**arguments),
        SimpleNamespace(**model),
        SimpleNamespace(**parallel),
        kv_cache_dtype=changes.get("kv_cache_dtype", "auto"),
        drafts_trees=changes.get("drafts_trees", True),
        **{key: changes[key] for key in ("transfer", "connectors", "moves_layers") if key in changes},
        batch_invariant=changes.get("batch_invariant", False),
    )
