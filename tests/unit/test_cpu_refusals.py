from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.engine.cpu import refuse_unsupported
from vllm_specext.errors import ConfigurationError


def config(**changes: Any) -> SimpleNamespace:
    """A configuration that model runner V2 serves on CPU, with `changes` to any of its parts."""
    parts: dict[str, dict[str, Any]] = {
        "model_config": {
            "enable_trace_replay": False,
            "return_sampling_mask": False,
            "enable_prompt_embeds": False,
            "uses_mrope": False,
            "is_hybrid": False,
        },
        "parallel_config": {
            "prefill_context_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "enable_batch_sharded_sampling": None,
        },
        "speculative_config": {"method": "eagle", "enable_adaptive_verification": False},
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
        ({"is_hybrid": True}, "hybrid of attention and Mamba layers"),
        ({"watermark_config": "keyed"}, "watermark_config is 'keyed'"),
        ({"method": "dflash"}, "speculative method is 'dflash'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_has_no_kernel_body_is_refused_by_name(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        refuse_unsupported(config(**change))
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
