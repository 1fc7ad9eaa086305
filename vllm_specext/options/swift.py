"""The keys of SWIFT."""

from typing import Literal

from pydantic import Field

from vllm_specext.options.base import MAX_DRAFT_TOKENS, MethodOptions
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.swift_sizes import MAX_DEPTH, NUM_CANDIDATES


class SwiftOptions(MethodOptions):
    root_slots = 1

    method: Literal["swift"] = "swift"
    num_speculative_tokens: int = Field(
        32, ge=1, le=MAX_DRAFT_TOKENS, description="most drafted tokens verified at once, siblings included"
    )
    swift_skip_ratio: float = Field(0.45, gt=0, lt=1, description="share of the sub-layers that a draft leaves out")
    swift_context_window: int = Field(
        32, ge=1, le=256, description="generated tokens on which a set of sub-layers is evaluated"
    )
    swift_max_score: float = Field(0.95, gt=0, le=1, description="matchness at which the search stops")
    swift_max_steps: int = Field(1000, ge=0, description="sets that are evaluated at most; 0 searches for none")
    swift_bayes_interval: int = Field(25, ge=0, description="steps from one Bayesian suggestion to the next; 0: none")
    swift_confidence: float = Field(0.8, ge=0, le=1, description="probability below which a chain ends")
    swift_layers: str | None = Field(None, description="file with the set to use; nothing is searched for then")
    swift_save: str | None = Field(
        None, min_length=1, description="file that the found set is written to, to be given back as swift_layers"
    )

    @property
    def short_are_chains(self) -> bool:
        """Short drafts, too, have alternatives beside their chain."""
        return False

    @property
    def tree(self) -> TreeShape:
        return TreeShape(self.num_speculative_tokens, min(self.num_speculative_tokens, MAX_DEPTH), NUM_CANDIDATES)

    @property
    def lookahead(self) -> int:
        return max(self.tree.depth, self.swift_context_window + 1)
