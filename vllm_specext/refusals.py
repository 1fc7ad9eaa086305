"""The combinations that are refused at start, before weights are loaded.

``FEATURES`` is the single table that both the errors and the feature matrix (``vllm-specext methods``) come from. A
method is refused each of them unless it declares to bear it (``declaration.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vllm_specext.architectures import is_other_hybrid
from vllm_specext.declaration import Declaration, Reads
from vllm_specext.errors import ConfigurationError


@dataclass(frozen=True)
class Launch:
    """What the refusals look at."""

    arguments: Any
    """vLLM's engine arguments."""
    model: Any
    """The target's ``ModelConfig``."""
    parallel: Any
    """The target's ``ParallelConfig``."""
    kv_cache_dtype: str
    """The data type of the KV cache, with the checkpoint's choice in place of "auto"."""
    drafts_trees: bool
    """Whether the method drafts trees, with the keys that were given."""
    transfer: Any = None
    """vLLM's ``KVTransferConfig``, if there is one."""
    connectors: Sequence[str] = ()
    """The names of the launch's KV connectors, which load and save pages of the cache."""
    moves_layers: bool = False
    """Whether one of them moves keys and values layer by layer, within a pass."""
    batch_invariant: bool = False
    """Whether vLLM was asked for results that do not depend on the batch (``VLLM_BATCH_INVARIANT``)."""


@dataclass(frozen=True)
class Feature:
    """Something that a launch may ask for, and that a method has to declare to bear."""

    name: str
    """The name in declarations."""
    title: str
    """The name for people."""
    applies: Callable[[Launch], bool]
    reason: str = "the method has not been tried with it"
    """Why a method that does not bear the feature cannot."""
    reasons: Mapping[Reads, str] = field(default_factory=dict)
    """The reason in its place for methods that read this."""
    bearable: bool = True
    """False if verification or vLLM's runner, which all methods share, does not work with the feature."""


class Refused(NamedTuple):
    """One feature that a method is refused."""

    feature: str
    reason: str
    trees_only: bool
    """Whether the method's chains work with the feature."""


FLOAT8_CACHES = ("fp8", "fp8_e4m3")
"""Types of keys and values in float8 that tree attention reads. vLLM takes both for E4M3."""


def is_quantised(kv_cache_dtype: str) -> bool:
    """Whether keys and values lie in the cache as other numbers than the model computes."""
    return kv_cache_dtype not in ("auto", "bfloat16", "float16")


UNEVEN = ("LMCacheConnectorV1", "FlexKVConnectorV1", "HF3FSKVConnector", "MoRIIOConnector")
"""KV connectors that count on all layers having the target's shape, or on one pass through each in a step. LMCache's
own, which follows the first, has a longer name."""
NIXLS = frozenset({"NixlConnector", "NixlPullConnector", "NixlPushConnector"})


def _recomputes(launch: Launch) -> bool:
    """Whether what could not be loaded is computed, with connectors with which that has not been tried."""
    policy = getattr(launch.transfer, "kv_load_failure_policy", None)
    return policy == "recompute" and not NIXLS.issuperset(launch.connectors)


LM_HEAD = "lm_head"
"""The module of a target that no LoRA adapter may have (``engine/hooks/lora_patches.py``)."""


def _adapts_lm_head(modules: list[str] | None) -> bool:
    """Whether ``modules``, for which the user wants adapters, name the target's output layer."""
    return any(module.rpartition(".")[2] == LM_HEAD for module in modules or ())


def _for_readers_of_the_target(reason: str) -> dict[Reads, str]:
    readers = (Reads.HIDDEN_STATES, Reads.AUXILIARY_STATES, Reads.KEYS_AND_VALUES, Reads.LAYERS)
    return dict.fromkeys(readers, reason)


def _for_readers_of_the_cache(reason: str) -> dict[Reads, str]:
    return dict.fromkeys((Reads.KEYS_AND_VALUES, Reads.LAYERS), reason)


_QUANTISED_UNREAD = _for_readers_of_the_cache(
    "the drafter reads the target's keys and values as they lie in the cache, and not quantised ones"
)

FEATURES: tuple[Feature, ...] = (
    Feature(
        "pipeline_parallel",
        "--pipeline-parallel-size above 1",
        lambda launch: launch.parallel.pipeline_parallel_size > 1,
        "the drafter is run by the worker that knows the text, and stages before it do not",
        _for_readers_of_the_target("the drafter needs the target's last hidden states and embedding in one worker"),
        bearable=False,
    ),
    Feature(
        "tensor_parallel",
        "--tensor-parallel-size above 1",
        lambda launch: launch.parallel.tensor_parallel_size > 1,
    ),
    Feature(
        "skip_tokenizer_init",
        "--skip-tokenizer-init",
        lambda launch: bool(launch.model.skip_tokenizer_init),
        reasons={Reads.TEXT: "the text is what target and drafter have in common"},
    ),
    Feature(
        "decode_context_parallel",
        "--decode-context-parallel-size above 1",
        lambda launch: launch.parallel.decode_context_parallel_size > 1,
        "the drafter's keys and values are not split over the sequence",
        bearable=False,
    ),
    Feature(
        "prefill_context_parallel",
        "--prefill-context-parallel-size above 1",
        lambda launch: launch.parallel.prefill_context_parallel_size > 1,
        "the drafter's keys and values are not split over the sequence",
        bearable=False,
    ),
    Feature(
        "data_parallel",
        "--data-parallel-size above 1",
        lambda launch: launch.parallel.data_parallel_size > 1,
    ),
    Feature(
        "data_parallel_moe",
        "--data-parallel-size above 1 with a mixture-of-experts target",
        lambda launch: launch.parallel.data_parallel_size > 1 and bool(launch.model.is_moe),
        reasons=_for_readers_of_the_target("the ranks share experts and would have to grow their trees in step"),
    ),
    Feature(
        "dbo",
        "--enable-dbo (dual-batch overlap)",
        lambda launch: bool(launch.parallel.use_ubatching),
        "verification needs the whole batch in one forward pass",
        bearable=False,
    ),
    Feature(
        "batch_sharded_sampling",
        "--enable-batch-sharded-sampling",
        lambda launch: bool(launch.parallel.enable_batch_sharded_sampling),
        "each rank would verify its own share of the requests and not learn what the others accepted",
        bearable=False,
    ),
    Feature(
        "batch_invariant",
        "VLLM_BATCH_INVARIANT=1",
        lambda launch: launch.batch_invariant,
        "tree attention and the drafter's passes split their work by the batch",
        bearable=False,
    ),
    Feature(
        "fast_prefill",
        "--kv-sharing-fast-prefill",
        lambda launch: bool(launch.arguments.kv_sharing_fast_prefill),
        "layers that share keys and values then compute other rows than those that are verified",
        bearable=False,
    ),
    Feature(
        "lora_lm_head",
        "--lora-target-modules with lm_head",
        lambda launch: bool(launch.arguments.enable_lora) and _adapts_lm_head(launch.arguments.lora_target_modules),
        "vLLM's runner V2 applies an adapter of lm_head to one row of logits per request, and verification needs more",
        bearable=False,
    ),
    Feature(
        "lora",
        "--enable-lora",
        lambda launch: bool(launch.arguments.enable_lora),
        reasons={Reads.LAYERS: "the target's layers would draft without their adapters"},
    ),
    Feature(
        "kv_connector",
        "--kv-transfer-config or --kv-offloading-size (KV connector)",
        lambda launch: bool(launch.connectors),
    ),
    Feature(
        "uneven_connector",
        f"a KV connector that works layer by layer or takes layers to be alike ({', '.join(UNEVEN)})",
        lambda launch: launch.moves_layers or any(name.startswith(UNEVEN) for name in launch.connectors),
        reasons=_for_readers_of_the_target(
            "a drafter's layers may have another shape than the target's, and run several times in a step"
        ),
        bearable=False,
    ),
    Feature(
        "recomputing_connector",
        "kv_load_failure_policy 'recompute' unless the KV connector is NIXL's",
        _recomputes,
        bearable=False,
    ),
    Feature(
        "hybrid_connector",
        "a KV connector with a hybrid target",
        lambda launch: bool(launch.model.is_hybrid and launch.connectors),
        "recurrent states that were loaded have not been tried",
        bearable=False,
    ),
    Feature(
        "ec_connector",
        "--ec-transfer-config (encoder-cache connector)",
        lambda launch: launch.arguments.ec_transfer_config is not None,
        reasons={
            Reads.LAYERS: "its targets have no encoder, and the metrics of its search travel in the connector's place"
        },
    ),
    Feature(
        "recurrent",
        "a hybrid or attention-free target whose recurrent layers (Mamba, linear attention) are of another kind",
        lambda launch: is_other_hybrid(launch.model),
        "its recurrent state cannot be rolled back to the accepted token",
        bearable=False,
    ),
    Feature(
        "replayed_states",
        "--use-replayssm",
        lambda launch: bool(launch.arguments.use_replayssm),
        "drafts are verified from one state for each request, and not from inputs that are kept in its place",
        bearable=False,
    ),
    Feature(
        "hybrid",
        "a hybrid target with recurrent layers (Qwen3-Next, Qwen3.5, Granite 4, Nemotron-H, Falcon-H1)",
        lambda launch: bool(launch.model.is_hybrid),
        reasons=_for_readers_of_the_cache("its recurrent layers have no keys and values that the drafter could read"),
    ),
    Feature(
        "sparse_mla",
        "a target with sparse latent attention (DeepSeek V3.2 and later, GLM 5)",
        lambda launch: bool(launch.model.use_mla) and hasattr(launch.model.hf_text_config, "index_topk"),
        "which tokens a node sees would be chosen along a path of the tree",
    ),
    Feature(
        "mla",
        "a target with multi-head latent attention (MLA)",
        lambda launch: bool(launch.model.use_mla),
        reasons=_for_readers_of_the_cache("latent vectors are not the keys and values that the drafter reads"),
    ),
    Feature(
        "multimodal",
        "a multimodal target",
        lambda launch: bool(launch.model.is_multimodal_model),
    ),
    Feature(
        "encoder_decoder",
        "an encoder-decoder target",
        lambda launch: bool(launch.model.is_encoder_decoder),
        "drafters are trained on decoder-only targets",
        bearable=False,
    ),
    Feature(
        "pooling",
        "a pooling model",
        lambda launch: launch.model.runner_type != "generate",
        "it generates no tokens to draft",
        bearable=False,
    ),
    Feature(
        "watermark",
        "--watermark-config",
        lambda launch: launch.arguments.watermark_config is not None,
        "watermarked sampling replaces the sampler that verification draws with",
        bearable=False,
    ),
    Feature(
        "trace_replay",
        "--enable-trace-replay",
        lambda launch: bool(launch.model.enable_trace_replay),
        "replayed tokens are forced past the sampler that verification draws with",
        bearable=False,
    ),
    Feature(
        "auxiliary_output",
        "--enable-return-routed-experts",
        lambda launch: bool(launch.arguments.aux_output_config.enabled),
        "a tree's first rows would be taken for those that were accepted, and no other drafts have been tried with it",
        bearable=False,
    ),
    Feature(
        "sampling_mask",
        "--return-sampling-mask",
        lambda launch: bool(launch.model.return_sampling_mask),
        "the mask is not collected for drafted positions",
        bearable=False,
    ),
    Feature(
        "prompt_embeds",
        "--enable-prompt-embeds",
        lambda launch: bool(launch.model.enable_prompt_embeds),
    ),
    Feature(
        "mrope",
        "a target with multi-dimensional rotary positions (M-RoPE)",
        lambda launch: bool(launch.model.uses_mrope),
        reasons={Reads.LAYERS: "the target's layers would draft with positions on a single axis"},
    ),
    Feature(
        "float8_cache",
        "--kv-cache-dtype fp8 or fp8_e4m3",
        lambda launch: launch.kv_cache_dtype in FLOAT8_CACHES,
        reasons=_QUANTISED_UNREAD,
    ),
    Feature(
        "quantised_cache",
        "--kv-cache-dtype other than auto, bfloat16, float16, fp8 or fp8_e4m3",
        lambda launch: is_quantised(launch.kv_cache_dtype) and launch.kv_cache_dtype not in FLOAT8_CACHES,
        "tree attention does not read keys and values of such a type",
        _QUANTISED_UNREAD,
    ),
    Feature(
        "sliding_window",
        "a target with sliding-window attention",
        lambda launch: launch.model.get_sliding_window() is not None,
        reasons=_for_readers_of_the_cache(
            "layers with a window do not keep the keys and values that the drafter reads"
        ),
    ),
)


def check_declaration(method: str, declared: Declaration) -> None:
    """Raise ``ValueError`` if a declaration names a feature that does not exist, or that no method can bear."""
    known = {feature.name for feature in FEATURES if feature.bearable}
    if unknown := (declared.bears | declared.chains_bear) - known:
        raise ValueError(f"method {method!r} declares to bear {sorted(unknown)}, but known are {sorted(known)}.")


def refused(feature: Feature, declared: Declaration) -> Refused | None:
    """How a method with this declaration is refused ``feature``, ``None`` if it is not."""
    if feature.name in declared.bears:
        return None
    reason = feature.reasons.get(declared.reads, feature.reason)
    return Refused(feature.title, reason, trees_only=feature.name in declared.chains_bear)


def refused_to(declared: Declaration) -> list[Refused]:
    """All features that a method with this declaration is refused, in the table's order."""
    return [found for feature in FEATURES if (found := refused(feature, declared)) is not None]


def refuse(method: str, declared: Declaration, launch: Launch) -> None:
    """Raise ``ConfigurationError`` for the first feature of the launch that the method is refused."""
    for feature in FEATURES:
        found = refused(feature, declared)
        if found is None or (found.trees_only and not launch.drafts_trees) or not feature.applies(launch):
            continue
        what = f"draft trees of method {method!r}" if found.trees_only else f"method {method!r}"
        way_out = "; tree_top_k 1 drafts chains, which can" if found.trees_only else ""
        raise ConfigurationError(f"{what} cannot be combined with {found.feature}, because {found.reason}{way_out}.")
