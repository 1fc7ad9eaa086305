"""The keys of ``--speculative-config`` for our methods, and the combinations that are refused.

Everything here is checked before a weight is loaded, and every error is one sentence that names the key, the value and
what is allowed. ``REFUSALS`` is the single table behind both the errors and the feature matrix (``vllm-specext
methods``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_specext.errors import ConfigurationError

MAX_DRAFT_TOKENS = 256
"""More than this at once never pays; the bound keeps a typing error from allocating buffers for it."""


class MethodOptions(BaseModel):
    """What all our methods share; field names are vLLM's own where vLLM has the key."""

    model_config = ConfigDict(extra="forbid", strict=True)

    method: str
    num_speculative_tokens_per_batch_size: list[list[int]] | None = Field(
        None, description="[first batch size, last batch size, drafted tokens] per range of running requests"
    )


class GriffinOptions(MethodOptions):
    method: Literal["griffin"] = "griffin"
    model: str = Field(min_length=1, description="the drafter: a directory or a hub id")
    num_speculative_tokens: int = Field(
        59,
        ge=1,
        le=MAX_DRAFT_TOKENS,
        description="most drafted tokens verified at once; the chain's length when tree_top_k is 1",
    )
    tree_depth: int = Field(6, ge=1, le=32, description="levels of the draft tree")
    tree_top_k: int = Field(
        10, ge=1, le=64, description="children kept per node and nodes kept per level; 1 drafts a chain"
    )
    revision: str | None = Field(None, description="branch, tag or commit of the drafter on the hub")
    attention_backend: str | None = Field(
        None, description="attention backend of the drafter; vLLM chooses when absent"
    )
    disable_eagle_block_drop: bool = Field(
        False, description="keep the last prefix-cache block, whose draft keys may be stale: never changes the output"
    )


@dataclass(frozen=True)
class Launch:
    """What the refusals look at: vLLM's engine arguments, the target's ``ModelConfig`` and ``ParallelConfig``."""

    arguments: Any
    model: Any
    parallel: Any


@dataclass(frozen=True)
class Refusal:
    """A combination that is not supported: refused by ``feature`` when ``applies`` to the launch."""

    feature: str
    methods: tuple[str, ...]
    reason: str
    applies: Callable[[Launch], bool]


ALL = ("griffin",)

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "--pipeline-parallel-size above 1",
        ALL,
        "the drafter needs the target's last hidden states and embedding in one worker",
        lambda launch: launch.parallel.pipeline_parallel_size > 1,
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
        "--enable-dbo (dual-batch overlap)",
        ALL,
        "verification needs the whole batch in one forward pass",
        lambda launch: bool(launch.parallel.use_ubatching),
    ),
    Refusal(
        "--kv-transfer-config (KV connector)",
        ALL,
        "connectors do not know the drafter's keys and values",
        lambda launch: launch.arguments.kv_transfer_config is not None,
    ),
    Refusal(
        "a hybrid or attention-free target (Mamba, linear attention)",
        ALL,
        "its recurrent state cannot be rolled back to the accepted token",
        lambda launch: bool(launch.model.is_hybrid or launch.model.is_attention_free),
    ),
    Refusal(
        "a target with multi-head latent attention (MLA)",
        ALL,
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
)


def parse(options: type[MethodOptions], raw: Mapping[str, Any]) -> MethodOptions:
    """``raw`` as a checked options object; ``ConfigurationError`` names the first bad key and what is allowed."""
    try:
        return options(**raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        method = raw.get("method")
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(options.model_fields)
            raise ConfigurationError(
                f"speculative-config key {key!r} is unknown for method {method!r}; allowed are {allowed}."
            ) from None
        if first["type"] == "missing":
            raise ConfigurationError(
                f"speculative-config key {key!r} is missing for method {method!r}: "
                f"{options.model_fields[key].description}."
            ) from None
        expected = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigurationError(f"speculative-config key {key!r} is {raw.get(key)!r}, but {expected}.") from None


def refuse(method: str, launch: Launch) -> None:
    """Raise ``ConfigurationError`` for the first entry of ``REFUSALS`` that applies."""
    for refusal in REFUSALS:
        if method in refusal.methods and refusal.applies(launch):
            raise ConfigurationError(
                f"method {method!r} cannot be combined with {refusal.feature}, because {refusal.reason}."
            )
