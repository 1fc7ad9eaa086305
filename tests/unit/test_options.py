"""Every bad option is one sentence that names the key, the value and what is allowed."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.options import REFUSALS, GriffinOptions, Launch, parse, refuse

GOOD = {"method": "griffin", "model": "drafter", "num_speculative_tokens": 4, "tree_top_k": 1}


def launch(**changes: Any) -> Launch:
    parallel = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "use_ubatching": False,
    }
    model = {
        "is_hybrid": False,
        "is_attention_free": False,
        "use_mla": False,
        "is_encoder_decoder": False,
        "runner_type": "generate",
        "enable_trace_replay": False,
        "return_sampling_mask": False,
    }
    arguments: dict[str, Any] = {"kv_transfer_config": None, "watermark_config": None}
    for group in (parallel, model, arguments):
        group.update({key: value for key, value in changes.items() if key in group})
    return Launch(SimpleNamespace(**arguments), SimpleNamespace(**model), SimpleNamespace(**parallel))


def test_good_options_keep_their_values_and_get_the_documented_defaults() -> None:
    options = parse(GriffinOptions, {"method": "griffin", "model": "drafter"})
    assert isinstance(options, GriffinOptions)
    assert (options.num_speculative_tokens, options.tree_depth, options.tree_top_k) == (59, 6, 10)
    assert parse(GriffinOptions, GOOD).model_dump(exclude_unset=True) == GOOD


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tree_topk": 1}, ["'tree_topk'", "unknown", "tree_top_k"]),
        ({"num_speculative_tokens": "4"}, ["'num_speculative_tokens'", "'4'", "integer"]),
        ({"num_speculative_tokens": True}, ["'num_speculative_tokens'", "True", "integer"]),
        ({"num_speculative_tokens": -1}, ["'num_speculative_tokens'", "-1", "1"]),
        ({"num_speculative_tokens": 0}, ["'num_speculative_tokens'", "0", "1"]),
        ({"num_speculative_tokens": 10**9}, ["'num_speculative_tokens'", "256"]),
        ({"tree_depth": 1.5}, ["'tree_depth'", "1.5", "integer"]),
        ({"model": None}, ["'model'", "None", "string"]),
        ({"model": ""}, ["'model'", "''", "character"]),
        (
            {"num_speculative_tokens_per_batch_size": "all"},
            ["'num_speculative_tokens_per_batch_size'", "'all'", "list"],
        ),
    ],
)
def test_a_bad_key_or_value_is_named_in_one_sentence(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(GriffinOptions, GOOD | change)
    sentence = str(caught.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_a_missing_drafter_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'model' is missing"):
        parse(GriffinOptions, {"method": "griffin"})


UNSUPPORTED = [
    ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
    ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
    ({"prefill_context_parallel_size": 2}, "--prefill-context-parallel-size"),
    ({"use_ubatching": True}, "--enable-dbo"),
    ({"kv_transfer_config": object()}, "--kv-transfer-config"),
    ({"is_hybrid": True}, "hybrid"),
    ({"is_attention_free": True}, "attention-free"),
    ({"use_mla": True}, "MLA"),
    ({"is_encoder_decoder": True}, "encoder-decoder"),
    ({"runner_type": "pooling"}, "pooling"),
    ({"watermark_config": {}}, "--watermark-config"),
    ({"enable_trace_replay": True}, "--enable-trace-replay"),
    ({"return_sampling_mask": True}, "--return-sampling-mask"),
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
