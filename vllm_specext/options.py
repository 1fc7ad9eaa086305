"""The keys of ``--speculative-config`` for our methods.

Everything here is checked before weights are loaded. Every error is one sentence that names the key, the value and what
is allowed. Properties say what follows from the keys: the tree, and the KV slots that drafting writes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_specext.errors import ConfigurationError
from vllm_specext.tree.budget import TreeShape, lookahead, pool_size, shape_for
from vllm_specext.tree.swift_sizes import MAX_DEPTH, NUM_CANDIDATES

MAX_DRAFT_TOKENS = 256
"""The most tokens of a draft. More never pay, and without a bound a typing error would allocate buffers for them."""


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

    root_slots: ClassVar[int] = 0
    """KV slots after the accepted prefix that the last sampled token takes in the drafter's cache."""

    @property
    def samples_drafts(self) -> bool:
        """Whether drafted tokens are sampled, and verified with the probabilities that they were sampled with."""
        return False

    @property
    def needs_prediction(self) -> bool:
        """Whether nothing can be drafted for a request that gives no prediction."""
        return False

    @property
    def tree(self) -> TreeShape | None:
        """The largest draft tree, ``None`` if drafts are chains."""
        return None

    @property
    def lookahead(self) -> int | None:
        """KV slots that drafting writes, the last sampled token's first. ``None`` means one per drafted token."""
        return None if self.tree is None else lookahead(self.tree.depth, self.tree.top_k, self.root_slots)


CHOICE_KEYS = frozenset({"adaptive_drafts", "keep_step_costs"})
"""Keys about the choice of the number of drafted tokens, none of which is vLLM's."""

TOP_K = (
    "children kept per node and nodes kept per level; 1 drafts a chain; when absent, trees with fewer nodes than by "
    "default are narrower"
)


class TreeOptions(MethodOptions):
    """The keys that methods share whose drafter grows trees."""

    tree_depth: int = Field(6, ge=1, le=32, description="depth of the draft tree: its longest path from the root")
    tree_top_k: int = Field(10, ge=1, le=64, description=TOP_K)
    attention_backend: str | None = Field(
        None, description="attention backend of the drafter; vLLM chooses when absent"
    )

    @property
    def tree(self) -> TreeShape | None:
        # A tree with no more nodes than its depth is a chain, because every level keeps at least one node.
        if self.tree_top_k == 1 or self.num_speculative_tokens <= self.tree_depth:
            return None
        nodes, depth, top_k = self.num_speculative_tokens, self.tree_depth, self.tree_top_k
        usual = type(self).model_fields["num_speculative_tokens"].default
        if "tree_top_k" not in self.model_fields_set and nodes < usual:
            # With the usual width, 8 nodes would hardly leave the first level, and bring less than a chain.
            top_k = min(top_k, shape_for(nodes, TreeShape(usual, depth, top_k)).top_k)
        return TreeShape(nodes, depth, top_k)


class CheckpointOptions(MethodOptions):
    """The keys that methods share whose drafter is a checkpoint."""

    model: str = Field(min_length=1, description="the drafter: a directory or a hub id")
    revision: str | None = Field(None, description="branch, tag or commit of the drafter on the hub")


class DrafterOptions(TreeOptions, CheckpointOptions):
    """The keys that methods share whose drafter is a checkpoint and grows trees."""


class SharedHeadOptions(DrafterOptions):
    """The keys that methods share whose drafter scores tokens with the target's own output layer."""

    draft_vocab_size: int | None = Field(
        None,
        ge=1,
        description="tokens that the drafter scores and can draft: the target's special ones, then the first of "
        "draft_vocab_file; when absent, all of the file, of the checkpoint's d2t, or of the target",
    )
    draft_vocab_file: str | None = Field(
        None, min_length=1, description="file with the target's tokens, most frequent first, from vllm-specext vocab"
    )


BLOCK_DROP = "keep the last prefix-cache block, whose draft keys may be stale: never changes the output"

NUM_DRAFTED = "most drafted tokens verified at once; the chain's length when tree_top_k is 1"


class GriffinOptions(SharedHeadOptions):
    method: Literal["griffin"] = "griffin"
    num_speculative_tokens: int = Field(59, ge=1, le=MAX_DRAFT_TOKENS, description=NUM_DRAFTED)
    disable_eagle_block_drop: bool = Field(False, description=BLOCK_DROP)


class StockDrafterOptions(DrafterOptions):
    """The keys of methods whose drafters vLLM itself can load, and drafts chains with."""

    stock_method: ClassVar[str]
    """vLLM's name for the method."""

    num_speculative_tokens: int = Field(59, ge=1, le=MAX_DRAFT_TOKENS, description=NUM_DRAFTED)


class Eagle3TreeOptions(StockDrafterOptions):
    stock_method = "eagle3"

    method: Literal["eagle3-tree"] = "eagle3-tree"
    disable_eagle_block_drop: bool = Field(False, description=BLOCK_DROP)


class EagleTreeOptions(StockDrafterOptions):
    stock_method = "eagle"

    method: Literal["eagle-tree"] = "eagle-tree"
    disable_eagle_block_drop: bool = Field(False, description=BLOCK_DROP)


class BlockOptions(StockDrafterOptions):
    """The keys that methods share whose drafters give all positions of a draft in one pass."""

    root_slots = 1

    tree_depth: int = Field(
        6,
        ge=1,
        le=64,
        description="depth of the draft tree: its longest path from the root; when absent, as deep as the drafter's "
        "blocks",
    )
    tree_top_k: int = Field(
        10, ge=1, le=64, description="most likely tokens of each position that trees are made of; 1 drafts a chain"
    )

    @property
    def tree(self) -> TreeShape | None:
        if self.tree_top_k == 1 or self.num_speculative_tokens <= self.tree_depth:
            return None
        return TreeShape(self.num_speculative_tokens, self.tree_depth, self.tree_top_k)

    @property
    def levels(self) -> int:
        """Tokens that are drafted one after another."""
        return self.num_speculative_tokens if self.tree is None else self.tree_depth

    @property
    def lookahead(self) -> int:
        """A block: the last sampled token, and a mask token for each level."""
        return 1 + self.levels


class DFlashTreeOptions(BlockOptions):
    stock_method = "dflash"

    method: Literal["dflash-tree"] = "dflash-tree"


class DSparkTreeOptions(BlockOptions):
    stock_method = "dspark"

    method: Literal["dspark-tree"] = "dspark-tree"
    tree_top_k: int = Field(10, ge=1, le=64, description=TOP_K)


class DraftModelTreeOptions(StockDrafterOptions):
    stock_method = "draft_model"
    root_slots = 1

    method: Literal["draft-model-tree"] = "draft-model-tree"
    model: str = Field(min_length=1, description="the drafter: a directory or a hub id of a causal language model")


class MtpTreeOptions(TreeOptions):
    stock_method: ClassVar[str] = "mtp"

    method: Literal["mtp-tree"] = "mtp-tree"
    num_speculative_tokens: int = Field(24, ge=1, le=MAX_DRAFT_TOKENS, description=NUM_DRAFTED)
    tree_depth: int = Field(4, ge=1, le=32, description="depth of the draft tree: its longest path from the root")
    disable_eagle_block_drop: bool = Field(False, description=BLOCK_DROP)


class MoAOptions(SharedHeadOptions):
    root_slots = 1

    method: Literal["moa"] = "moa"
    num_speculative_tokens: int = Field(62, ge=1, le=MAX_DRAFT_TOKENS, description=NUM_DRAFTED)
    tree_top_k: int = Field(8, ge=1, le=64, description=TOP_K)
    target_layer_inference: int | None = Field(
        None,
        ge=0,
        description="the target's last layers that run over the drafter's feature; when absent, the "
        "checkpoint's number",
    )


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
    def tree(self) -> TreeShape:
        return TreeShape(self.num_speculative_tokens, min(self.num_speculative_tokens, MAX_DEPTH), NUM_CANDIDATES)

    @property
    def lookahead(self) -> int:
        return max(self.tree.depth, self.swift_context_window + 1)


LOOKBEHIND = 10
"""Tokens of the text so far that are encoded again together with new ones, unless the user says otherwise."""


class ForeignOptions(CheckpointOptions):
    """The keys that methods share whose drafter is any language model, with any tokenizer."""

    model: str = Field(min_length=1, description="the drafter: a directory or a hub id of a causal language model")

    @property
    def lookbehind(self) -> int:
        """Tokens of the text so far that are encoded again together with new ones."""
        return LOOKBEHIND

    @property
    def lookahead(self) -> int:
        """No KV slots of the target: the drafter writes to its own cache."""
        return 0


FOREIGN_DRAFTED = "drafted tokens of the target verified at once"


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
        description="whether the prompt is the prediction of requests that give none (prompt lookup)",
    )

    @property
    def needs_prediction(self) -> bool:
        return not self.use_prompt

    @property
    def lookahead(self) -> int:
        """No KV slots: drafting runs no model."""
        return 0


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
        min_length=3,
        max_length=3,
        description="for EAGLE-3: after how many of the target's layers states are kept too, ascending",
    )

    @property
    def lookahead(self) -> int:
        return 0


def parse(options: type[MethodOptions], raw: Mapping[str, Any]) -> MethodOptions:
    """Check the keys ``raw``, and return them as options. A ``ConfigurationError`` names the first bad key and what is
    allowed."""
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


def check_sizes(options: MethodOptions, max_model_len: int, step_tokens: int | None) -> None:
    """Raise ``ConfigurationError``, with the number that fits, when the draft has no room.

    A draft and the token before it are computed in one step, which has at most ``step_tokens`` tokens when that is
    limited. At least one token has to follow them in a sequence of ``max_model_len`` tokens.
    """
    tokens = options.num_speculative_tokens
    key = f"speculative-config key 'num_speculative_tokens' is {tokens}"
    tree, schedule = options.tree, options.num_speculative_tokens_per_batch_size or []
    if tree is not None and tokens > (pool := pool_size(tree.depth, tree.top_k)):
        raise ConfigurationError(
            f"{key}, but a tree with tree_depth {tree.depth} and tree_top_k {tree.top_k} has at most {pool} nodes: "
            f"at most {pool} are allowed, or a larger tree_depth or tree_top_k."
        )
    if step_tokens is not None and 1 + tokens > step_tokens:
        raise ConfigurationError(
            f"{key}, but a step computes at most {step_tokens} tokens (--max-num-batched-tokens) and a draft needs one "
            f"more than its length: at most {step_tokens - 1} are allowed."
        )
    if 1 + tokens >= max_model_len:
        raise ConfigurationError(
            f"{key}, but a sequence has at most {max_model_len} tokens (--max-model-len): "
            f"at most {max_model_len - 2} are allowed."
        )
    if too_many := [entry for entry in schedule if entry[2] > tokens]:
        raise ConfigurationError(
            f"speculative-config key 'num_speculative_tokens_per_batch_size' has {too_many[0]}, "
            f"but at most num_speculative_tokens, {tokens}, can be drafted."
        )
