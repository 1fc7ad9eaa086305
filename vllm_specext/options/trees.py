"""The keys of methods that grow draft trees, but for those whose drafters vLLM itself can load (``stock.py``)."""

from typing import Literal

from pydantic import Field

from vllm_specext.options.base import (
    LOOKED_UP,
    MAX_DRAFT_TOKENS,
    QUANTIZATION,
    WAITS,
    CheckpointOptions,
    MethodOptions,
    Predicted,
)
from vllm_specext.tree.budget import TreeShape, shape_for

TOP_K = (
    "children kept per node and nodes kept per level; 1 drafts a chain; when absent, trees with fewer nodes than by "
    "default are narrower"
)

DEPTH = (
    "depth of the draft tree, its longest path from the root; with adaptive_drafts the most: large trees end earlier "
    "where that is measured to be faster"
)


BLOCK_DROP = "keep the last prefix-cache block, whose draft keys may be stale: never changes the output"


HEAD_QUANTIZATION = "float8 for the output layer that the drafter scores tokens with; of the target's it gets a copy"

NUM_DRAFTED = "most drafted tokens verified at once; the chain's length when tree_top_k is 1"


class TreeOptions(MethodOptions):
    """The keys that methods share whose drafter grows trees."""

    tree_depth: int = Field(6, ge=1, le=32, description=DEPTH)
    tree_top_k: int = Field(10, ge=1, le=64, description=TOP_K)
    attention_backend: str | None = Field(
        None, description="attention backend of the drafter; vLLM chooses when absent"
    )

    calibrated_trees: bool = Field(
        True,
        description="learn from what is accepted how far the drafter's probabilities can be trusted, for trees of the "
        "tokens that are accepted most often; when false, they are taken as they are, as published",
    )
    prediction_tokens: int = Field(
        0,
        ge=0,
        le=MAX_DRAFT_TOKENS,
        description="tokens of a request's own prediction that are verified at once, in the place of a tree, while the "
        "answer goes on as predicted; 0 reads no predictions",
    )
    use_prompt: bool = Field(
        False,
        description=f"{LOOKED_UP}, where that is expected to bring more tokens than the method's own draft; {WAITS}",
    )

    @property
    def calibrates(self) -> bool:
        return self.calibrated_trees and self.tree is not None

    @property
    def chooses_depth(self) -> bool:
        return self.tree is not None

    @property
    def looks_up(self) -> bool:
        return self.use_prompt

    @property
    def predicted(self) -> Predicted | None:
        return Predicted(self.prediction_tokens, prompt=self.use_prompt) if self.prediction_tokens else None

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
    draft_lm_head_quantization: Literal["fp8"] | None = Field(None, description=HEAD_QUANTIZATION)


class GriffinOptions(SharedHeadOptions):
    method: Literal["griffin"] = "griffin"
    num_speculative_tokens: int = Field(59, ge=1, le=MAX_DRAFT_TOKENS, description=NUM_DRAFTED)
    disable_eagle_block_drop: bool = Field(False, description=BLOCK_DROP)
    quantization: Literal["fp8_per_channel"] | None = Field(None, description=QUANTIZATION)


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
    client_drafts: bool = Field(
        False,
        description="whether requests may bring trees that clients have drafted, and get in return what their drafters "
        "must know of the text",
    )

    @property
    def takes_clients_trees(self) -> bool:
        return self.client_drafts

    @property
    def longest_given(self) -> int:
        return self.num_speculative_tokens if self.client_drafts else super().longest_given


class MtpTreeOptions(TreeOptions):
    stock_method = "mtp"

    method: Literal["mtp-tree"] = "mtp-tree"
    model: str | None = Field(
        None,
        min_length=1,
        description="a checkpoint with the module alone, a directory or a hub id: a Gemma 4 target's assistant, or a "
        "module that was trained further; when absent, the module in the target's own checkpoint",
    )
    revision: str | None = Field(None, description="branch, tag or commit of that checkpoint on the hub")
    num_speculative_tokens: int = Field(24, ge=1, le=MAX_DRAFT_TOKENS, description=NUM_DRAFTED)
    tree_depth: int = Field(4, ge=1, le=32, description=DEPTH)
    disable_eagle_block_drop: bool = Field(False, description=BLOCK_DROP)
