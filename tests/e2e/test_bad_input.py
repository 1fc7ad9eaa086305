"""Whatever is wrong with a launch is said at start, in one sentence that names it; nobody has to read a traceback."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launches import (
    SOUND,
    WEIGHTS,
    Edit,
    assert_one_sentence,
    configure,
    copy_of_drafter,
    copy_of_target,
    double_kv_width,
    drop,
    edit_config,
    halve_hidden_size,
    make_pipe,
    refusal,
    remove,
    resize,
    truncate,
    truncate_released_format,
)
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, MOA_TREE

FILES: dict[str, tuple[Edit, list[str]]] = {
    "a truncated file": (truncate, [WEIGHTS, "truncated"]),
    "a truncated file as released": (truncate_released_format, ["pytorch_model.bin", "truncated"]),
    "no weights": (remove(WEIGHTS), [WEIGHTS, "pytorch_model.bin"]),
    "no configuration": (remove("config.json"), ["config.json"]),
    "a pipe for a configuration": (make_pipe("config.json"), ["config.json is not a regular file"]),
    "a list of model types": (edit_config(model_type=["x"]), ["config.json", "model_type is ['x']"]),
}
EKV2E, LSA_KEYS = "Ekv2E.weight", "layer_self_attention.self_attn.k_proj.weight"
DRAFTERS: dict[str, dict[str, tuple[Edit, list[str]]]] = {
    "griffin": FILES
    | {
        "half the hidden size": (halve_hidden_size, ["hidden size 128", "256"]),
        "another vocabulary": (resize("embed_tokens.weight", slice(-8)), ["2040", "2048", "vocabulary"]),
        "a missing tensor": (drop("fc.fc.bias"), ["fc.fc.bias"]),
        "a misshapen tensor": (
            resize("fc.fc.weight", slice(None), slice(-2)),
            ["fc.fc.weight", "[256, 510]", "[256, 512]"],
        ),
    },
    "eagle3-tree": FILES
    | {
        "half the hidden size": (edit_config(hidden_size=128), ["hidden_size is 128", "256"]),
        "another vocabulary": (edit_config(vocab_size=2040), ["2040", "2048", "vocab_size"]),
        "a missing tensor": (drop("norm.weight"), ["norm.weight"]),
        "a misshapen tensor": (
            resize("fc.weight", slice(None), slice(-2)),
            ["fc.weight", "[256, 766]", "[256, 768]"],
        ),
    },
    "moa": FILES
    | {
        "another number of layers": (edit_config(num_target_layers=11), ["number of target layers is 11", "12"]),
        "another key/value width": (double_kv_width, ["key/value width", "512", "256"]),
        "another vocabulary": (edit_config(vocab_size=2040), ["2040", "2048", "vocabulary"]),
        "more target layers than there are": (
            edit_config(target_layer_inference=13),
            ["target_layer_inference = 13", "12 layers"],
        ),
        "a negative number of target layers": (
            edit_config(target_layer_inference=-1),
            ["config.json", "target_layer_inference is -1", "at least 0"],
        ),
        "a missing tensor": (drop("Ekv2E.bias"), ["Ekv2E.bias"]),
        "half an LSA": (drop(LSA_KEYS), [LSA_KEYS]),
        "a misshapen tensor": (resize(LSA_KEYS, slice(-1)), [LSA_KEYS, "127 rows"]),
        "an LSA of another width": (resize(EKV2E, slice(None), slice(-64)), ["layer_self_attention", "[256]", "[192]"]),
    },
}

KEYS: dict[str, dict[str, tuple[dict[str, Any], list[str]]]] = {
    "griffin": {
        "unknown method": ({"method": "grifin"}, ["'method'", "'grifin'", "griffin"]),
        "two methods": ({"method": ["griffin"]}, ["'method'", "['griffin']", "text"]),
        "unknown key": ({"tree_topk": 1}, ["'tree_topk'", "tree_top_k"]),
        "number as text": ({"num_speculative_tokens": "four"}, ["'num_speculative_tokens'", "'four'"]),
        "fraction": ({"num_speculative_tokens": 2.5}, ["'num_speculative_tokens'", "2.5"]),
        "negative length": ({"num_speculative_tokens": -1}, ["'num_speculative_tokens'", "-1"]),
        "no length": ({"num_speculative_tokens": 0}, ["'num_speculative_tokens'", "0"]),
        "negative width": ({"tree_top_k": -1}, ["'tree_top_k'", "-1"]),
        "overlapping schedule": (
            {"num_speculative_tokens_per_batch_size": [[1, 4, 4], [3, 8, 2]]},
            ["'num_speculative_tokens_per_batch_size'", "[3, 8, 2]", "non-overlapping"],
        ),
        "schedule above the length": (
            {"num_speculative_tokens_per_batch_size": [[1, 4, 5]]},
            ["'num_speculative_tokens_per_batch_size'", "[1, 4, 5]", "at most num_speculative_tokens, 4"],
        ),
        "more nodes than the tree proposes": (
            {"num_speculative_tokens": 21, "tree_depth": 2, "tree_top_k": 4},
            ["'num_speculative_tokens' is 21", "at most 20 are allowed", "larger tree_depth or tree_top_k"],
        ),
        "missing folder": ({"model": "./no-such-drafter"}, ["'model'", "./no-such-drafter"]),
        "no drafter": ({"model": ""}, ["'model'"]),
    },
    "moa": {
        "unknown key": ({"target_layers": 1}, ["'target_layers'", "target_layer_inference"]),
        "more target layers than there are": (
            {"target_layer_inference": 13},
            ["'target_layer_inference' is 13", "12 layers", "at most 12 are allowed"],
        ),
        "negative target layers": ({"target_layer_inference": -1}, ["'target_layer_inference' is -1", "0"]),
        "target layers as text": ({"target_layer_inference": "one"}, ["'target_layer_inference'", "'one'"]),
    },
}

LAUNCHES: dict[str, dict[str, tuple[dict[str, Any], list[str]]]] = {
    "griffin": {
        "sharded sampling": ({"enable_batch_sharded_sampling": True}, ["--enable-batch-sharded-sampling"]),
        "adapters of the output layer": (
            {"enable_lora": True, "lora_target_modules": ["q_proj", "lm_head"]},
            ["--lora-target-modules", "lm_head"],
        ),
        "pipeline parallel": ({"pipeline_parallel_size": 2}, ["--pipeline-parallel-size", "griffin"]),
        "layers one by one": (
            {
                "kv_transfer_config": {
                    "kv_connector": "MultiConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {
                        "connectors": [{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}]
                    },
                }
            },
            ["KV connector", "layer by layer", "LMCacheConnectorV1"],
        ),
        "a draft longer than a step": ({"max_num_batched_tokens": 4}, ["--max-num-batched-tokens", "at most 3"]),
        "a draft longer than a sequence": ({"max_model_len": 5}, ["--max-model-len", "at most 3"]),
    },
    "moa": {
        "adapters of the output layer": (
            {"enable_lora": True, "lora_target_modules": ["q_proj", "lm_head"]},
            ["--lora-target-modules", "lm_head"],
        ),
        "quantised keys and values": ({"kv_cache_dtype": "fp8"}, ["'moa'", "--kv-cache-dtype", "quantised"]),
    },
}

WINDOWED = ["sliding_attention", "full_attention"] * 6
MLA = {"kv_lora_rank": 32, "q_lora_rank": None, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
FP8 = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
TARGETS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "fewer layers": ({"num_hidden_layers": 11}, ["number of target layers is 12", "11"]),
    "wider keys and values": ({"num_key_value_heads": 4}, ["key/value width", "256", "512"]),
    "another vocabulary": ({"vocab_size": 4096}, ["vocabulary is 2048", "4096"]),
    "windows in some layers": (
        {"sliding_window": 128, "layer_types": WINDOWED},
        ["'moa'", "sliding-window attention"],
    ),
    "latent attention": (
        {"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "num_key_value_heads": 4} | MLA,
        ["'moa'", "MLA"],
    ),
    "a checkpoint that asks for a quantised cache": ({"quantization_config": FP8}, ["'moa'", "--kv-cache-dtype"]),
}
"""Changes to the target's configuration that a MoA drafter cannot live with."""
ADAPTERS: dict[str, Any] = {"enable_lora": True, "lora_target_modules": ["q_proj"], "max_num_seqs": 16}


def cases(table: dict[str, dict[str, Any]]) -> Any:
    """``method`` and ``case`` of every entry."""
    return pytest.mark.parametrize(
        ("method", "case"), [(method, case) for method, own in table.items() for case in own]
    )


@pytest.mark.parametrize("method", SOUND)
def test_the_unedited_models_are_accepted(method: str, tmp_path: Path) -> None:
    unedited = copy_of_drafter(method, tmp_path, edit_config())
    assert configure(unedited, {"model": copy_of_target(tmp_path, {})}).speculative_config.method == method


@cases(DRAFTERS)
def test_an_unfit_drafter_is_refused(method: str, case: str, tmp_path: Path) -> None:
    edit, fragments = DRAFTERS[method][case]
    assert_one_sentence(refusal(copy_of_drafter(method, tmp_path, edit)), fragments)


@cases(KEYS)
def test_a_bad_key_or_value_is_refused(method: str, case: str) -> None:
    keys, fragments = KEYS[method][case]
    assert_one_sentence(refusal(SOUND[method] | keys), fragments)


@pytest.mark.parametrize("value", [[], "x", 5, [["griffin"]]], ids=repr)
def test_what_is_no_object_is_refused(value: Any) -> None:
    assert_one_sentence(refusal(value), [f"--speculative-config is {value!r}", "JSON object"])


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: Any = "griffin"
    for _ in range(100_000):
        value = [value]
    assert_one_sentence(refusal(value), ["--speculative-config", "nested more than 32 deep"])
    assert_one_sentence(refusal({"method": value}), ["--speculative-config", "nested more than 32 deep"])


@cases(LAUNCHES)
def test_an_unsupported_combination_is_refused(method: str, case: str) -> None:
    launch, fragments = LAUNCHES[method][case]
    assert_one_sentence(refusal(SOUND[method], launch), fragments)


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_whose_cache_moa_cannot_read_is_refused(case: str, tmp_path: Path) -> None:
    changes, fragments = TARGETS[case]
    assert_one_sentence(refusal(MOA_TREE, {"model": copy_of_target(tmp_path, changes)}), fragments)


@pytest.mark.parametrize("keys", [{"target_layer_inference": 1}, {}], ids=["key", "checkpoint"])
def test_adapters_are_refused_where_the_targets_layers_draft(keys: dict[str, Any], tmp_path: Path) -> None:
    drafter = copy_of_drafter("moa", tmp_path, edit_config(target_layer_inference=0 if keys else 1))
    message = refusal(drafter | keys, ADAPTERS)
    assert_one_sentence(message, ["target_layer_inference 1", "--enable-lora", "target_layer_inference 0 can"])
    configure(drafter | {"target_layer_inference": 0}, ADAPTERS)


def test_a_tree_over_a_quantised_cache_is_refused_with_the_way_out() -> None:
    message = refusal(GRIFFIN_CHAIN | {"num_speculative_tokens": 24, "tree_top_k": 4}, {"kv_cache_dtype": "fp8_e5m2"})
    assert_one_sentence(message, ["draft trees", "--kv-cache-dtype", "tree_top_k 1"])
