"""The keys of methods whose drafter is any language model, with any tokenizer."""

from typing import Literal

from pydantic import Field

from vllm_specext.options.base import MAX_DRAFT_TOKENS, QUANTIZATION, CheckpointOptions

LOOKBEHIND = 10
"""Tokens of the text so far that are encoded again together with new ones, unless the user says otherwise."""


FOREIGN_DRAFTED = "drafted tokens of the target verified at once"


class ForeignOptions(CheckpointOptions):
    """The keys that methods share whose drafter is any language model, with any tokenizer."""

    model: str = Field(min_length=1, description="the drafter: a directory or a hub id of a causal language model")
    quantization: Literal["fp8_per_channel"] | None = Field(None, description=QUANTIZATION)

    @property
    def lookbehind(self) -> int:
        """Tokens of the text so far that are encoded again together with new ones."""
        return LOOKBEHIND

    @property
    def lookahead(self) -> int:
        """No KV slots of the target: the drafter writes to its own cache."""
        return 0


class SlemOptions(ForeignOptions):
    method: Literal["slem"] = "slem"
    num_speculative_tokens: int = Field(6, ge=1, le=MAX_DRAFT_TOKENS, description=FOREIGN_DRAFTED)
    slem_lookbehind: int = Field(
        LOOKBEHIND, ge=1, le=256, description="tokens of the text so far that are encoded again together with new ones"
    )
    draft_confidence: float = Field(0.4, ge=0, le=1, description="probability below which a draft ends; 0: never")

    @property
    def lookbehind(self) -> int:
        return self.slem_lookbehind


class TliOptions(ForeignOptions):
    method: Literal["tli"] = "tli"
    num_speculative_tokens: int = Field(5, ge=1, le=MAX_DRAFT_TOKENS, description=FOREIGN_DRAFTED)
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        "greedy",
        description="whether drafts are the drafter's best tokens, or sampled at the request's temperature and "
        "verified with their probabilities",
    )

    @property
    def samples_drafts(self) -> bool:
        return self.draft_sample_method == "probabilistic"


class SlrsOptions(ForeignOptions):
    method: Literal["slrs"] = "slrs"
    num_speculative_tokens: int = Field(3, ge=1, le=MAX_DRAFT_TOKENS, description=FOREIGN_DRAFTED)

    @property
    def samples_drafts(self) -> bool:
        return True
