"""The keys that methods share."""

from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from vllm_specext.tree.budget import TreeShape, lookahead

MAX_DRAFT_TOKENS = 256
"""The most tokens of a draft. More never pay, and without a bound a typing error would allocate buffers for them."""


IN_WORDS = "in_words"
"""Of a field's ``json_schema_extra``: its default as people are shown it, where that depends on the drafter."""

LOOKED_UP = "whether the prompt and the answer so far are the prediction of requests that give none (prompt lookup)"
WAITS = "every step waits for the device then"


class Predicted(NamedTuple):
    """How what a request predicts of its answer is drafted."""

    tokens: int
    """At most so many at once."""
    match: int = 3
    """How many of the text's last tokens have to stand together in the prediction to go on from there."""
    prompt: bool = False
    """Whether the prompt and the answer so far are the prediction of a request that gives none."""
    has_drafter: bool = True
    """Whether there is something else to draft where these say little."""


VLLMS_KEYS = {
    "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size",
    "quantization",
    "attention_backend",
    "disable_eagle_block_drop",
}
"""Keys that vLLM's own configuration takes over. It has more by the same names, some not in every version; of these
ours count."""


class MethodOptions(BaseModel):
    """The keys that all our methods share. A key that vLLM also has keeps vLLM's name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    method: str
    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: list[list[int]] | None = Field(
        None,
        description="[first batch size, last batch size, drafted tokens] per range of running requests; "
        "when given, nothing is measured",
    )
    adaptive_drafts: bool = Field(
        True,
        description="draft as many tokens as are measured to be fastest at the load, at most num_speculative_tokens, "
        "or none; when false, trees shrink with the load and chains do not",
    )
    keep_step_costs: bool = Field(
        True,
        description="keep what steps were measured to cost in a file of this user, for the next start on the same "
        "machine with the same model and settings",
    )

    stock_method: ClassVar[str | None] = None
    """vLLM's name for the method, where vLLM drafts chains with it."""
    root_slots: ClassVar[int] = 0
    """KV slots after the accepted prefix that the last sampled token takes in the drafter's cache."""

    def for_vllm(self, **others: Any) -> dict[str, Any]:
        """The keys that are vLLM's, too, and ``others``."""
        return self.model_dump(include=VLLMS_KEYS, exclude_none=True) | others

    @property
    def in_float8(self) -> dict[str, str]:
        """The keys by which parts of the drafter are in float8, with their values."""
        keys = "quantization", "draft_lm_head_quantization"
        found = self.model_dump(include=set(keys), exclude_none=True)
        return {key: found[key] for key in keys if key in found}

    @property
    def looks_up(self) -> bool:
        """Whether the text itself is the prediction of a request that gives none."""
        return False

    @property
    def takes_clients_trees(self) -> bool:
        """Whether requests may bring trees that clients have drafted."""
        return False

    @property
    def samples_drafts(self) -> bool:
        """Whether drafted tokens are sampled, and verified with the probabilities that they were sampled with."""
        return False

    @property
    def calibrates(self) -> bool:
        """Whether the sharpness of trees is learned from what is accepted."""
        return False

    @property
    def needs_prediction(self) -> bool:
        """Whether nothing can be drafted for a request that gives no prediction."""
        return False

    @property
    def predicted(self) -> Predicted | None:
        """How predictions are drafted; ``None`` where they are not read."""
        return None

    @property
    def longest_given(self) -> int:
        """Tokens of the longest chain that a request itself may bring to be verified; 0 where none can."""
        return 0 if self.predicted is None else self.predicted.tokens

    @property
    def tree(self) -> TreeShape | None:
        """The largest draft tree, ``None`` if drafts are chains."""
        return None

    @property
    def chooses_depth(self) -> bool:
        """Whether a shallower tree takes less time to draft, so that the depth is chosen with the number of tokens."""
        return False

    @property
    def short_are_chains(self) -> bool:
        """Whether every draft of no more nodes than a tree is deep is a chain, whoever made it."""
        return self.longest_given == 0

    @property
    def lookahead(self) -> int | None:
        """KV slots that drafting writes, the last sampled token's first. ``None`` means one per drafted token."""
        return None if self.tree is None else lookahead(self.tree.depth, self.tree.top_k, self.root_slots)


QUANTIZATION = (
    "weights of the drafter's layers in float8, as vLLM makes them: they take half the time to read, and drafts may "
    "differ a little"
)


class CheckpointOptions(MethodOptions):
    """The keys that methods share whose drafter is a checkpoint."""

    model: str = Field(min_length=1, description="the drafter: a directory or a hub id")
    revision: str | None = Field(None, description="branch, tag or commit of the drafter on the hub")
