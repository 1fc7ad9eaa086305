"""Every combination that is not supported is refused by name."""

from types import SimpleNamespace
from typing import Any

import pytest

from scripts.docs_tables import TABLES
from tests.unit.connectors import of_connector
from tests.unit.launches import launch
from vllm_specext.declaration import Declaration, Keeps, Reads
from vllm_specext.errors import ConfigurationError
from vllm_specext.refusals import FEATURES, Launch, check_declaration, refused, refused_to
from vllm_specext.refusals import refuse as refuse_declared
from vllm_specext.registry import METHODS


def refuse(method: str, launch: Launch) -> None:
    refuse_declared(method, METHODS[method].declares, launch)


HYBRID: dict[str, Any] = {"is_hybrid": True, "architectures": ["Qwen3NextForCausalLM"]}
UNSUPPORTED = [
    ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
    ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
    ({"prefill_context_parallel_size": 2}, "--prefill-context-parallel-size"),
    ({"use_ubatching": True}, "--enable-dbo"),
    ({"enable_batch_sharded_sampling": True}, "--enable-batch-sharded-sampling"),
    ({"kv_sharing_fast_prefill": True}, "--kv-sharing-fast-prefill"),
    ({"use_replayssm": True}, "--use-replayssm"),
    ({"enable_lora": True, "lora_target_modules": ["q_proj", "lm_head"]}, "--lora-target-modules"),
    ({"enable_lora": True, "lora_target_modules": ["language_model.lm_head"]}, "lm_head"),
    ({"moves_layers": True}, "layer by layer"),
    (of_connector("LMCacheConnectorV1Dynamic"), "LMCacheConnectorV1"),
    (of_connector("MooncakeStoreConnector", "recompute"), "recompute"),
    (HYBRID | of_connector("NixlConnector"), "hybrid"),
    ({"is_hybrid": True}, "hybrid"),
    ({"is_attention_free": True}, "attention-free"),
    ({"is_encoder_decoder": True}, "encoder-decoder"),
    ({"runner_type": "pooling"}, "pooling"),
    ({"watermark_config": {}}, "--watermark-config"),
    ({"enable_trace_replay": True}, "--enable-trace-replay"),
    ({"aux_output_config": SimpleNamespace(enabled=True)}, "--enable-return-routed-experts"),
    ({"return_sampling_mask": True}, "--return-sampling-mask"),
    ({"batch_invariant": True}, "VLLM_BATCH_INVARIANT=1"),
]
"""A change to a launch that is fine, and what the refusal names."""
SPARSE: dict[str, Any] = {"use_mla": True, "text_config": {"index_topk": 2048}}
BUT_LATENT: list[tuple[dict[str, Any], str]] = [
    (SPARSE, "sparse latent attention"),
    ({"kv_cache_dtype": "fp8_per_token_head"}, "--kv-cache-dtype"),
    ({"is_moe": True, "data_parallel_size": 2}, "mixture-of-experts"),
]
IN_THE_TARGET = [({"use_mla": True}, "MLA"), *BUT_LATENT]
CONNECTOR: list[tuple[dict[str, Any], str]] = [({"ec_transfer_config": object()}, "--ec-transfer-config")]
ON_ONE_AXIS: list[tuple[dict[str, Any], str]] = [({"uses_mrope": True}, "M-RoPE")]
FOREIGN: list[tuple[dict[str, Any], str]] = [({"skip_tokenizer_init": True}, "--skip-tokenizer-init")]
UNSUPPORTED_BY: dict[str, list[tuple[dict[str, Any], str]]] = {
    "dflash-tree": BUT_LATENT + CONNECTOR,
    "dspark-tree": BUT_LATENT + CONNECTOR,
    "peagle-tree": [
        *BUT_LATENT,
        *ON_ONE_AXIS,
        *CONNECTOR,
        ({"is_multimodal_model": True}, "multimodal"),
    ],
    "draft-model-tree": BUT_LATENT + CONNECTOR + FOREIGN,
    "pard-tree": [
        *BUT_LATENT,
        *ON_ONE_AXIS,
        *CONNECTOR,
        *FOREIGN,
        ({"is_multimodal_model": True}, "multimodal"),
    ],
    "mtp-tree": BUT_LATENT + CONNECTOR,
    "griffin": BUT_LATENT,
    "eagle3-tree": BUT_LATENT,
    "eagle-tree": BUT_LATENT,
    "moa": [
        *IN_THE_TARGET,
        (HYBRID, "a hybrid target with recurrent layers"),
        ({"sliding_window": 4096}, "sliding-window"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
    ],
    "given": BUT_LATENT + CONNECTOR,
    "slem": FOREIGN,
    "tli": FOREIGN,
    "slrs": FOREIGN,
    "swift": [
        *IN_THE_TARGET,
        *ON_ONE_AXIS,
        (HYBRID, "a hybrid target with recurrent layers"),
        ({"sliding_window": 4096}, "sliding-window"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
        ({"enable_lora": True, "lora_target_modules": ["q_proj"]}, "--enable-lora"),
        ({"ec_transfer_config": object()}, "--ec-transfer-config"),
    ],
}
"""The same, where other methods have nothing against it."""
TREES_ONLY: dict[str, list[dict[str, Any]]] = {
    **{
        name: [{"kv_cache_dtype": "nvfp4"}, {"is_moe": True, "data_parallel_size": 2}]
        for name in ("griffin", "eagle3-tree", "eagle-tree")
    },
}
every_method = pytest.mark.parametrize("method", METHODS)


@every_method
def test_an_ordinary_launch_is_not_refused(method: str) -> None:
    refuse(method, launch())


@pytest.mark.parametrize(
    ("method", "change", "feature"),
    [(method, *case) for method, cases in UNSUPPORTED_BY.items() for case in UNSUPPORTED + cases],
)
def test_an_unsupported_combination_is_refused_by_name(method: str, change: dict[str, Any], feature: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        refuse(method, launch(**change))
    assert feature in str(caught.value)


@every_method
def test_every_entry_of_the_table_is_reached_by_a_case_above(method: str) -> None:
    launches = [launch(**change) for change, _ in UNSUPPORTED + UNSUPPORTED_BY[method]]
    closed = [feature for feature in FEATURES if refused(feature, METHODS[method].declares) is not None]
    assert [feature.name for feature in closed if not any(map(feature.applies, launches))] == []


@pytest.mark.parametrize(("method", "change"), [(name, case) for name, cases in TREES_ONLY.items() for case in cases])
def test_what_only_trees_cannot_do_is_open_to_chains(method: str, change: dict[str, Any]) -> None:
    refuse(method, launch(**change, drafts_trees=False))
    with pytest.raises(ConfigurationError, match="tree_top_k 1 drafts chains"):
        refuse(method, launch(**change))


def test_a_quantised_cache_is_closed_to_chains_of_a_drafter_that_reads_it() -> None:
    with pytest.raises(ConfigurationError, match=r"--kv-cache-dtype .* not quantised ones\.$"):
        refuse("moa", launch(kv_cache_dtype="fp8", drafts_trees=False))


def test_a_sliding_window_is_open_to_a_drafter_that_does_not_read_the_cache() -> None:
    refuse("griffin", launch(sliding_window=4096))


@every_method
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_a_cache_in_an_ordinary_data_type_holds_trees(method: str, dtype: str) -> None:
    refuse(method, launch(kv_cache_dtype=dtype))


OTHERS = ("fp8_e5m2", "fp8_inc", "fp8_per_token_head", "int8_per_token_head", "turboquant_k8v4", "nvfp4")


@pytest.mark.parametrize("dtype", OTHERS)
def test_caches_of_other_types_hold_no_trees(dtype: str) -> None:
    with pytest.raises(ConfigurationError, match=r"other than auto, bfloat16, float16, fp8 or fp8_e4m3, .* chains"):
        refuse("griffin", launch(kv_cache_dtype=dtype))


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3"])
def test_caches_in_float8_hold_trees_of_drafters_that_do_not_read_them(dtype: str) -> None:
    readers = (Reads.KEYS_AND_VALUES, Reads.LAYERS)
    for name, method in METHODS.items():
        if method.declares.reads not in readers:
            refuse(name, launch(kv_cache_dtype=dtype))


@pytest.mark.parametrize("method", ["griffin", "moa"])
def test_adapters_of_other_modules_than_the_output_layer_are_open(method: str) -> None:
    refuse(method, launch(enable_lora=True, lora_target_modules=["q_proj", "v_proj"]))


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if "data_parallel" in one.declares.bears])
def test_ranks_of_a_dense_target_are_independent_and_draft_trees(method: str) -> None:
    refuse(method, launch(data_parallel_size=2))


@every_method
def test_a_mixture_of_experts_on_one_rank_shares_them_with_nobody(method: str) -> None:
    refuse(method, launch(is_moe=True, data_parallel_size=1))


EVERYTHING: dict[str, dict[str, Any]] = {
    "pipeline_parallel": {"pipeline_parallel_size": 2},
    "tensor_parallel": {"tensor_parallel_size": 2},
    "skip_tokenizer_init": {"skip_tokenizer_init": True},
    "decode_context_parallel": {"decode_context_parallel_size": 2},
    "prefill_context_parallel": {"prefill_context_parallel_size": 2},
    "data_parallel": {"data_parallel_size": 2},
    "data_parallel_moe": {"data_parallel_size": 2, "is_moe": True},
    "dbo": {"use_ubatching": True},
    "batch_sharded_sampling": {"enable_batch_sharded_sampling": True},
    "batch_invariant": {"batch_invariant": True},
    "fast_prefill": {"kv_sharing_fast_prefill": True},
    "lora_lm_head": {"enable_lora": True, "lora_target_modules": ["lm_head"]},
    "lora": {"enable_lora": True},
    "kv_connector": of_connector("NixlConnector", "recompute"),
    "uneven_connector": of_connector("HF3FSKVConnector"),
    "recomputing_connector": of_connector("MooncakeStoreConnector", "recompute"),
    "hybrid_connector": HYBRID | of_connector("NixlConnector"),
    "ec_connector": {"ec_transfer_config": object()},
    "recurrent": {"is_hybrid": True},
    "replayed_states": {"use_replayssm": True},
    "hybrid": HYBRID,
    "sparse_mla": SPARSE,
    "mla": {"use_mla": True},
    "multimodal": {"is_multimodal_model": True},
    "encoder_decoder": {"is_encoder_decoder": True},
    "pooling": {"runner_type": "pooling"},
    "watermark": {"watermark_config": {}},
    "trace_replay": {"enable_trace_replay": True},
    "auxiliary_output": {"aux_output_config": SimpleNamespace(enabled=True)},
    "sampling_mask": {"return_sampling_mask": True},
    "prompt_embeds": {"enable_prompt_embeds": True},
    "mrope": {"uses_mrope": True},
    "float8_cache": {"kv_cache_dtype": "fp8"},
    "quantised_cache": {"kv_cache_dtype": "nvfp4"},
    "sliding_window": {"sliding_window": 4096},
}
"""A launch that asks for each feature of the table."""


def test_a_feature_has_one_row_in_the_feature_matrix() -> None:
    first_cells = [row.split(" | ")[0] for row in TABLES["refusals"]().splitlines()]
    assert len(set(first_cells)) == len(first_cells) > 20


def test_there_is_a_launch_for_every_feature() -> None:
    assert list(EVERYTHING) == [feature.name for feature in FEATURES]


@pytest.mark.parametrize("reads", Reads)
@pytest.mark.parametrize("feature", EVERYTHING)
def test_a_new_method_is_refused_everything_that_it_does_not_declare_to_bear(feature: str, reads: Reads) -> None:
    new = Declaration(reads=reads, keeps=Keeps.NOWHERE)
    refuse_declared("lookup", new, launch())
    with pytest.raises(ConfigurationError, match=r"^method 'lookup' cannot be combined with .*, because .*[.]$"):
        refuse_declared("lookup", new, launch(**EVERYTHING[feature]))


def test_what_a_method_declares_to_bear_is_open_to_it() -> None:
    bearable = {feature.name for feature in FEATURES if feature.bearable}
    new = Declaration(reads=Reads.NOTHING, keeps=Keeps.NOWHERE, bears=frozenset(bearable))
    for name in bearable:
        refuse_declared("lookup", new, launch(**EVERYTHING[name]))
    assert {one.feature for one in refused_to(new)} == {one.title for one in FEATURES if not one.bearable}


@pytest.mark.parametrize("name", ["lora_heads", "dbo"])
def test_a_declaration_that_names_no_such_feature_or_one_that_nobody_bears_is_an_error(name: str) -> None:
    declared = Declaration(reads=Reads.NOTHING, keeps=Keeps.NOWHERE, chains_bear=frozenset({name}))
    with pytest.raises(ValueError, match=name):
        check_declaration("lookup", declared)
