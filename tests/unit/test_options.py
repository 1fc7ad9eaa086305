"""Every bad option is one sentence that names the key, the value and what is allowed."""

from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.options.base import MethodOptions, Predicted
from vllm_specext.options.check import check_sizes, parse
from vllm_specext.options.swift import SwiftOptions
from vllm_specext.options.trees import GriffinOptions, MoAOptions
from vllm_specext.registry import METHODS
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.swift_sizes import GREEDY, SAMPLED

GOOD = {"method": "griffin", "model": "drafter", "num_speculative_tokens": 4, "tree_top_k": 1}


def test_good_options_keep_their_values_and_get_the_documented_defaults() -> None:
    options = parse(GriffinOptions, {"method": "griffin", "model": "drafter"})
    assert isinstance(options, GriffinOptions)
    assert (options.num_speculative_tokens, options.tree_depth, options.tree_top_k) == (59, 6, 10)
    assert parse(GriffinOptions, GOOD).model_dump(exclude_unset=True) == GOOD


def test_moa_has_the_published_tree_and_the_checkpoints_target_layer_inference() -> None:
    options = parse(MoAOptions, {"method": "moa", "model": "drafter"})
    assert isinstance(options, MoAOptions)
    assert options.tree == TreeShape(62, 6, 8)
    assert options.target_layer_inference is None
    check_sizes(options, 1024, None)


def test_swifts_trees_are_as_deep_as_published_and_as_wide_as_its_tables_of_candidates() -> None:
    options = parse(SwiftOptions, {"method": "swift"})
    assert options.tree == TreeShape(32, 25, max(*GREEDY, *SAMPLED)) == TreeShape(32, 25, 10)


BAD: list[tuple[type[MethodOptions], dict[str, Any], list[str]]] = [
    (GriffinOptions, {"tree_topk": 1}, ["'tree_topk'", "unknown", "tree_top_k"]),
    (GriffinOptions, {"num_speculative_tokens": "4"}, ["'num_speculative_tokens'", "'4'", "integer"]),
    (GriffinOptions, {"num_speculative_tokens": True}, ["'num_speculative_tokens'", "True", "integer"]),
    (GriffinOptions, {"num_speculative_tokens": -1}, ["'num_speculative_tokens'", "-1", "1"]),
    (GriffinOptions, {"num_speculative_tokens": 0}, ["'num_speculative_tokens'", "0", "1"]),
    (GriffinOptions, {"num_speculative_tokens": 10**9}, ["'num_speculative_tokens'", "256"]),
    (GriffinOptions, {"tree_depth": 1.5}, ["'tree_depth'", "1.5", "integer"]),
    (GriffinOptions, {"model": None}, ["'model'", "None", "string"]),
    (GriffinOptions, {"model": ""}, ["'model'", "''", "character"]),
    (
        GriffinOptions,
        {"num_speculative_tokens_per_batch_size": "all"},
        ["'num_speculative_tokens_per_batch_size'", "'all'", "list"],
    ),
    (MoAOptions, {"target_layer_inference": -1}, ["'target_layer_inference'", "-1", "0"]),
    (MoAOptions, {"target_layer_inference": True}, ["'target_layer_inference'", "True", "integer"]),
    (MoAOptions, {"target_layer_inference": "1"}, ["'target_layer_inference'", "'1'", "integer"]),
    (MoAOptions, {"tree_top_k": 65}, ["'tree_top_k'", "65", "64"]),
    (MoAOptions, {"disable_eagle_block_drop": True}, ["'disable_eagle_block_drop'", "unknown", "'moa'"]),
    (MoAOptions, {"method": "griffin"}, ["'method'", "'griffin'", "'moa'"]),
]


@pytest.mark.parametrize(("options", "change", "words"), BAD)
def test_a_bad_key_or_value_is_named_in_one_sentence(
    options: type[MethodOptions], change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(options, GOOD | {"method": options.model_fields["method"].default} | change)
    sentence = str(caught.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_a_missing_drafter_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'model' is missing"):
        parse(GriffinOptions, {"method": "griffin"})


def options(**keys: Any) -> GriffinOptions:
    return GriffinOptions(model="drafter", **keys)


@pytest.mark.parametrize(
    ("keys", "tree"),
    [
        ({}, TreeShape(59, 6, 10)),
        ({"num_speculative_tokens": 7}, TreeShape(7, 6, 2)),
        ({"num_speculative_tokens": 24}, TreeShape(24, 6, 5)),
        ({"num_speculative_tokens": 24, "tree_top_k": 10}, TreeShape(24, 6, 10)),
        ({"num_speculative_tokens": 100}, TreeShape(100, 6, 10)),
        ({"num_speculative_tokens": 6}, None),
        ({"tree_top_k": 1}, None),
        ({"num_speculative_tokens": 2, "tree_depth": 1}, TreeShape(2, 1, 2)),
        ({"num_speculative_tokens": 58, "tree_depth": 1}, TreeShape(58, 1, 10)),
    ],
)
def test_more_nodes_than_levels_make_a_tree_and_others_a_chain(keys: dict[str, Any], tree: TreeShape | None) -> None:
    assert options(**keys).tree == tree


@pytest.mark.parametrize(
    ("keys", "fits"),
    [
        ({"num_speculative_tokens": 21, "tree_depth": 2, "tree_top_k": 4}, 20),
        ({"num_speculative_tokens": 100}, 63),
        ({"num_speculative_tokens": 100, "tree_top_k": 1}, 63),
        ({"num_speculative_tokens": 63, "max_model_len": 64}, 62),
        ({"num_speculative_tokens": 63, "tree_top_k": 1, "max_model_len": 64}, 62),
    ],
)
def test_a_draft_without_room_is_refused_with_the_number_that_fits(keys: dict[str, Any], fits: int) -> None:
    max_model_len = keys.pop("max_model_len", 1024)
    with pytest.raises(ConfigurationError, match=rf"'num_speculative_tokens' is \d+.* at most {fits} are allowed.*\.$"):
        check_sizes(options(**keys), max_model_len, step_tokens=64)
    check_sizes(options(**keys | {"num_speculative_tokens": fits}), max_model_len, step_tokens=64)


def test_recurrent_layers_verify_fewer_tokens() -> None:
    check_sizes(options(num_speculative_tokens=200, tree_top_k=8), 1024, None)
    check_sizes(options(num_speculative_tokens=127), 1024, None, has_recurrent_layers=True)
    with pytest.raises(ConfigurationError, match=r"is 128, but a target with recurrent layers verifies at most 127 "):
        check_sizes(options(num_speculative_tokens=128), 1024, None, has_recurrent_layers=True)


def test_a_schedule_that_asks_for_more_than_can_be_drafted_is_refused() -> None:
    check_sizes(options(num_speculative_tokens_per_batch_size=[[1, 4, 59], [5, 8, 0]]), 1024, None)
    with pytest.raises(ConfigurationError, match=r"has \[1, 4, 60\], but at most num_speculative_tokens, 59"):
        check_sizes(options(num_speculative_tokens_per_batch_size=[[1, 4, 60], [5, 8, 0]]), 1024, None)


def test_what_is_predicted_is_a_part_of_what_is_drafted() -> None:
    assert options().predicted is None
    with pytest.raises(ConfigurationError, match=r"'use_prompt' is true, but prediction_tokens is 0; it must be .* 59"):
        check_sizes(options(use_prompt=True), 1024, None)
    looking = options(use_prompt=True, prediction_tokens=8).predicted
    assert looking == Predicted(8, match=3, prompt=True, has_drafter=True)
    reading = options(num_speculative_tokens=24, prediction_tokens=24)
    assert reading.predicted == Predicted(24, match=3, prompt=False)
    assert reading.tree == options(num_speculative_tokens=24).tree
    check_sizes(reading, 1024, None)
    with pytest.raises(ConfigurationError, match=r"'prediction_tokens' is 25, but at most num_speculative_tokens, 24"):
        check_sizes(options(num_speculative_tokens=24, prediction_tokens=25), 1024, None)


EVERY_KEY: dict[str, Any] = {
    "num_speculative_tokens_per_batch_size": [[1, 4, 2]],
    "adaptive_drafts": False,
    "keep_step_costs": False,
    "revision": "r",
    "attention_backend": "FLASH_ATTN",
    "tree_depth": 3,
    "tree_top_k": 2,
    "calibrated_trees": False,
    "prediction_tokens": 2,
    "use_prompt": True,
    "draft_passes": 2,
    "draft_vocab_size": 5,
    "draft_vocab_file": "f",
    "quantization": "fp8_per_channel",
    "draft_lm_head_quantization": "fp8",
    "disable_eagle_block_drop": True,
    "target_layer_inference": 1,
    "client_drafts": True,
    "draft_sample_method": "probabilistic",
}
DROPS_BLOCKS = ("griffin", "eagle3-tree", "eagle-tree", "peagle-tree", "mtp-tree")
IN_FLOAT8 = (*DROPS_BLOCKS[:4], "draft-model-tree", "pard-tree", "slem", "tli", "slrs")
WITHOUT_A_BACKEND = ("swift", "slem", "tli", "slrs", "given")


@pytest.mark.parametrize("name", METHODS)
def test_vllm_is_told_of_its_own_keys_and_of_no_others(name: str) -> None:
    options = METHODS[name].options
    least = {"method": name} | ({"model": "m"} if "model" in options.model_fields else {})
    default = {"num_speculative_tokens": options.model_fields["num_speculative_tokens"].default}
    dropped = {"disable_eagle_block_drop": False} if name in DROPS_BLOCKS else {}
    assert options.model_validate(least).for_vllm() == default | dropped
    every = {key: value for key, value in EVERY_KEY.items() if key in options.model_fields}
    assert options.model_validate(least | every).for_vllm(model="folder") == default | {
        "num_speculative_tokens_per_batch_size": [[1, 4, 2]],
        "model": "folder",
        **({"disable_eagle_block_drop": True} if name in DROPS_BLOCKS else {}),
        **({"quantization": "fp8_per_channel"} if name in IN_FLOAT8 else {}),
        **({} if name in WITHOUT_A_BACKEND else {"attention_backend": "FLASH_ATTN"}),
    }
