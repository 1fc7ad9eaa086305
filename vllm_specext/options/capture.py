"""The keys of `registry.CAPTURE`."""

from typing import Literal

from pydantic import Field

from vllm_specext.options.base import MethodOptions


class CaptureOptions(MethodOptions):
    """The keys of `registry.CAPTURE`, which drafts nothing."""

    method: Literal["capture"] = "capture"
    num_speculative_tokens: Literal[1] = Field(1, description="vLLM wants a number; nothing is drafted")
    num_speculative_tokens_per_batch_size: None = Field(None, description="nothing is drafted")
    adaptive_drafts: Literal[False] = Field(False, description="nothing is drafted")
    capture_tokens: int = Field(
        2**18,
        ge=1,
        le=2**26,
        description="tokens whose states are held until they are written, or a step's if those are more",
    )
    feature_dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="type of kept states")
    aux_layers: list[int] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="for EAGLE-3 and DFlash: after how many of the target's layers states are kept too, ascending",
    )

    @property
    def lookahead(self) -> int:
        return 0
