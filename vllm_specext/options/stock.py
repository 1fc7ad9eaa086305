"""The keys of methods whose drafters vLLM itself can load, and drafts chains with."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from vllm_specext.options.base import IN_WORDS, MAX_DRAFT_TOKENS, QUANTIZATION
from vllm_specext.options.trees import (
    BLOCK_DROP,
    HEAD_QUANTIZATION,
    NUM_DRAFTED,
    TOP_K,
    DrafterOptions,
)
from vllm_specext.tree.budget import TreeShape

POSITIONS = "depth of the draft tree: its longest path from the root, and the positions that the drafter gives at once"


class StockDrafterOptions(DrafterOptions):
    """The keys of methods whose drafters vLLM itself can load, and drafts chains with."""

    stock_method: ClassVar[str]
    speculators_types: ClassVar[tuple[str, ...]] = ()
    """What the drafters' checkpoints in the format of the speculators library may call themselves."""

    num_speculative_tokens: int = Field(59, ge=1, le=MAX_DRAFT_TOKENS, description=NUM_DRAFTED)


class EagleOptions(StockDrafterOptions):
    """The keys that methods share whose drafters read the target's hidden states."""

    disable_eagle_block_drop: bool = Field(False, description=BLOCK_DROP)
    quantization: Literal["fp8_per_channel"] | None = Field(None, description=QUANTIZATION)
    draft_lm_head_quantization: Literal["fp8"] | None = Field(None, description=HEAD_QUANTIZATION)


class Eagle3TreeOptions(EagleOptions):
    stock_method = "eagle3"
    speculators_types = ("eagle3",)

    method: Literal["eagle3-tree"] = "eagle3-tree"


class EagleTreeOptions(EagleOptions):
    stock_method = "eagle"
    speculators_types = ("eagle",)

    method: Literal["eagle-tree"] = "eagle-tree"


class LanguageModelOptions(StockDrafterOptions):
    """The keys that methods share whose drafter is a language model with the target's tokenizer."""

    stock_method = "draft_model"
    root_slots = 1

    model: str = Field(min_length=1, description="the drafter: a directory or a hub id of a causal language model")
    quantization: Literal["fp8_per_channel"] | None = Field(None, description=QUANTIZATION)


class DraftModelTreeOptions(LanguageModelOptions):
    method: Literal["draft-model-tree"] = "draft-model-tree"


class AtOnceOptions(StockDrafterOptions):
    """The keys that methods share whose drafters give all positions of a draft in one pass."""

    tree_top_k: int = Field(
        10, ge=1, le=64, description="most likely tokens of each position that trees are made of; 1 drafts a chain"
    )

    @property
    def tree(self) -> TreeShape | None:
        if self.tree_top_k == 1 or self.num_speculative_tokens <= self.tree_depth:
            return None
        return TreeShape(self.num_speculative_tokens, self.tree_depth, self.tree_top_k)

    @property
    def chooses_depth(self) -> bool:
        return False  # all positions are drafted in one pass


class PEagleTreeOptions(AtOnceOptions, EagleOptions):
    stock_method = "eagle3"
    speculators_types = ("peagle",)

    method: Literal["peagle-tree"] = "peagle-tree"
    tree_depth: int = Field(8, ge=1, le=32, description=POSITIONS)

    @property
    def lookahead(self) -> int | None:
        return None  # fewer KV slots than a tree has nodes


class PardTreeOptions(AtOnceOptions, LanguageModelOptions):
    method: Literal["pard-tree"] = "pard-tree"
    tree_depth: int = Field(
        12,
        ge=1,
        le=32,
        description="depth of the draft tree, its longest path from the root: the positions that the drafter gives at "
        "once, and a level for each further pass",
    )
    draft_passes: int = Field(
        3,
        ge=1,
        le=8,
        description="passes of the drafter for a tree: each but the first reads the tree before, and what it then "
        "knows makes a better one; with adaptive_drafts the most, fewer where that is measured to be faster",
    )

    @property
    def passes(self) -> int:
        """At most; every pass adds a level."""
        return min(self.draft_passes, self.tree_depth)

    @property
    def tree(self) -> TreeShape | None:
        shape = super().tree
        return shape and replace(shape, ends=tuple(range(shape.depth - self.passes + 1, shape.depth)))

    @property
    def chooses_depth(self) -> bool:
        return self.tree is not None and self.passes > 1

    @property
    def lookahead(self) -> int | None:
        if self.tree is None or self.passes == 1:
            return None  # fewer KV slots than a tree has nodes
        return self.root_slots + self.tree.nodes


class BlockOptions(AtOnceOptions):
    """The keys that methods share whose drafters were trained on blocks of one length."""

    root_slots = 1

    tree_depth: int = Field(
        6,
        ge=1,
        le=64,
        description="depth of the draft tree: its longest path from the root",
        json_schema_extra={IN_WORDS: "as deep as the drafter's blocks"},
    )

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
    speculators_types = ("dflash", "dflash2")

    method: Literal["dflash-tree"] = "dflash-tree"
    tree_top_k: int = Field(
        10,
        ge=1,
        le=64,
        description="most likely tokens of each position that trees are made of, and with a DFlash2 drafter children "
        "kept per node; 1 drafts a chain",
        json_schema_extra={IN_WORDS: "10, fewer with long blocks of a DFlash2 drafter"},
    )


class DSparkTreeOptions(BlockOptions):
    stock_method = "dspark"
    speculators_types = ("dspark",)

    method: Literal["dspark-tree"] = "dspark-tree"
    tree_top_k: int = Field(
        10, ge=1, le=64, description=TOP_K, json_schema_extra={IN_WORDS: "10, fewer with long blocks"}
    )
