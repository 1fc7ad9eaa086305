"""The combinations that are refused at start, before a weight is loaded.

``REFUSALS`` is the single table behind both the errors and the feature matrix (``vllm-specext methods``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_specext.errors import ConfigurationError


@dataclass(frozen=True)
class Launch:
    """What the refusals look at: vLLM's engine arguments, the target's ``ModelConfig`` and ``ParallelConfig``, the
    data type of the KV cache with the checkpoint's own choice in place of "auto", and whether trees are drafted."""

    arguments: Any
    model: Any
    parallel: Any
    kv_cache_dtype: str
    drafts_trees: bool


@dataclass(frozen=True)
class Refusal:
    """A combination that is not supported: refused by ``feature`` when ``applies`` to the launch."""

    feature: str
    methods: tuple[str, ...]
    reason: str
    applies: Callable[[Launch], bool]
    trees_only: bool = False
    """Chains of the same methods work."""


DRAFTERS = ("griffin", "moa")
"""They can draft chains instead of trees."""

IN_THE_TARGET = (*DRAFTERS, "swift")
"""They read the target's hidden states, or keys and values."""

FOREIGN = ("slem", "tli", "slrs")
ALL = (*IN_THE_TARGET, *FOREIGN)
LLAMA_LIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures whose decoder layers are attention behind a norm and an MLP behind another, which can be run one by
one."""


def _adapts_lm_head(modules: list[str] | None) -> bool:
    """Whether adapters may reach the target's output layer; without a list they reach every module."""
    return modules is None or any(module.rpartition(".")[2] == "lm_head" for module in modules)


def _quantises_cache(launch: Launch) -> bool:
    return launch.kv_cache_dtype not in ("auto", "bfloat16", "float16")


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "--pipeline-parallel-size above 1",
        IN_THE_TARGET,
        "the drafter needs the target's last hidden states and embedding in one worker",
        lambda launch: launch.parallel.pipeline_parallel_size > 1,
    ),
    Refusal(
        "--pipeline-parallel-size above 1",
        FOREIGN,
        "the drafter is run by the worker that knows the text, and stages before it do not",
        lambda launch: launch.parallel.pipeline_parallel_size > 1,
    ),
    Refusal(
        "--skip-tokenizer-init",
        FOREIGN,
        "the text is what target and drafter have in common",
        lambda launch: bool(launch.model.skip_tokenizer_init),
    ),
    Refusal(
        "--decode-context-parallel-size above 1",
        ALL,
        "the drafter's keys and values are not split over the sequence",
        lambda launch: launch.parallel.decode_context_parallel_size > 1,
    ),
    Refusal(
        "--prefill-context-parallel-size above 1",
        ALL,
        "the drafter's keys and values are not split over the sequence",
        lambda launch: launch.parallel.prefill_context_parallel_size > 1,
    ),
    Refusal(
        "--data-parallel-size above 1 with a mixture-of-experts target",
        IN_THE_TARGET,
        "the ranks share experts and would have to grow their trees in step",
        lambda launch: launch.parallel.data_parallel_size > 1 and bool(launch.model.is_moe),
        trees_only=True,
    ),
    Refusal(
        "--enable-dbo (dual-batch overlap)",
        ALL,
        "verification needs the whole batch in one forward pass",
        lambda launch: bool(launch.parallel.use_ubatching),
    ),
    Refusal(
        "--enable-batch-sharded-sampling",
        ALL,
        "each rank would verify its own share of the requests and not learn what the others accepted",
        lambda launch: bool(launch.parallel.enable_batch_sharded_sampling),
    ),
    Refusal(
        "--enable-lora unless --lora-target-modules names modules other than lm_head",
        ALL,
        "vLLM's runner V2 applies an adapter of lm_head to one row of logits per request, and verification needs more",
        lambda launch: bool(launch.arguments.enable_lora) and _adapts_lm_head(launch.arguments.lora_target_modules),
    ),
    Refusal(
        "--enable-lora",
        ("swift",),
        "the target's layers would draft without their adapters",
        lambda launch: bool(launch.arguments.enable_lora),
    ),
    Refusal(
        "--kv-transfer-config (KV connector)",
        ALL,
        "connectors do not know the drafter's keys and values",
        lambda launch: launch.arguments.kv_transfer_config is not None,
    ),
    Refusal(
        "--ec-transfer-config (encoder-cache connector)",
        ("swift",),
        "its targets have no encoder, and the metrics of its search travel where the connector's would",
        lambda launch: launch.arguments.ec_transfer_config is not None,
    ),
    Refusal(
        "a hybrid or attention-free target (Mamba, linear attention)",
        ALL,
        "its recurrent state cannot be rolled back to the accepted token",
        lambda launch: bool(launch.model.is_hybrid or launch.model.is_attention_free),
    ),
    Refusal(
        "a target with multi-head latent attention (MLA)",
        IN_THE_TARGET,
        "the drafter's cache does not fit beside a latent cache",
        lambda launch: bool(launch.model.use_mla),
    ),
    Refusal(
        "an encoder-decoder target",
        ALL,
        "drafters are trained on decoder-only targets",
        lambda launch: bool(launch.model.is_encoder_decoder),
    ),
    Refusal(
        "a pooling model",
        ALL,
        "it generates no tokens to draft",
        lambda launch: launch.model.runner_type != "generate",
    ),
    Refusal(
        "--watermark-config",
        ALL,
        "watermarked sampling replaces the sampler that verification draws with",
        lambda launch: launch.arguments.watermark_config is not None,
    ),
    Refusal(
        "--enable-trace-replay",
        ALL,
        "replayed tokens are forced past the sampler that verification draws with",
        lambda launch: bool(launch.model.enable_trace_replay),
    ),
    Refusal(
        "--return-sampling-mask",
        ALL,
        "the mask is not collected for drafted positions",
        lambda launch: bool(launch.model.return_sampling_mask),
    ),
    Refusal(
        "a target with multi-dimensional rotary positions (M-RoPE)",
        IN_THE_TARGET,
        "nodes are placed by their depth on a single axis",
        lambda launch: bool(launch.model.uses_mrope),
        trees_only=True,
    ),
    Refusal(
        "--kv-cache-dtype other than auto, bfloat16 or float16",
        ("moa", "swift"),
        "the drafter reads the target's keys and values as they lie in the cache, and not quantised ones",
        _quantises_cache,
    ),
    Refusal(
        "--kv-cache-dtype other than auto, bfloat16 or float16",
        ("griffin",),
        "draft trees over a quantised cache have not been run on the engine yet",
        _quantises_cache,
        trees_only=True,
    ),
    Refusal(
        "a target with sliding-window attention",
        ("moa", "swift"),
        "layers with a window do not keep the keys and values that the drafter reads",
        lambda launch: launch.model.get_sliding_window() is not None,
    ),
)


def refuse(method: str, launch: Launch) -> None:
    """Raise ``ConfigurationError`` for the first entry of ``REFUSALS`` that applies."""
    for refusal in REFUSALS:
        if refusal.trees_only and not launch.drafts_trees:
            continue
        if method in refusal.methods and refusal.applies(launch):
            has_chains = refusal.trees_only and method in DRAFTERS
            what = f"draft trees of method {method!r}" if has_chains else f"method {method!r}"
            way_out = "; tree_top_k 1 drafts chains, which can" if has_chains else ""
            raise ConfigurationError(
                f"{what} cannot be combined with {refusal.feature}, because {refusal.reason}{way_out}."
            )
