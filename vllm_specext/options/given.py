"""The keys of ``given``."""

from typing import Literal

from pydantic import Field

from vllm_specext.options.base import LOOKED_UP, MAX_DRAFT_TOKENS, WAITS, MethodOptions, Predicted


class GivenOptions(MethodOptions):
    method: Literal["given"] = "given"
    num_speculative_tokens: int = Field(
        32, ge=1, le=MAX_DRAFT_TOKENS, description="tokens of the prediction that are verified at once"
    )
    match_tokens: int = Field(
        3,
        ge=1,
        le=64,
        description="how many of the text's last tokens have to stand together in the prediction to go on from there, "
        "after a token that it did not foretell",
    )
    use_prompt: bool = Field(
        False,
        description=f"{LOOKED_UP}; {WAITS}",
    )

    @property
    def predicted(self) -> Predicted:
        return Predicted(self.num_speculative_tokens, self.match_tokens, self.use_prompt, has_drafter=False)

    @property
    def looks_up(self) -> bool:
        return self.use_prompt

    @property
    def needs_prediction(self) -> bool:
        return not self.use_prompt

    @property
    def lookahead(self) -> int:
        """No KV slots: drafting runs no model."""
        return 0
