"""Trees that may end at several depths, grown in one pass that is captured once.

The pass has a tree for each of the depths. A replay leaves out the deeper levels and the other trees.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.kernels.recording import Piece
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.expansion import Expansion


def no_cut(piece: Piece) -> None:
    """Nothing is captured."""


@dataclass(frozen=True)
class Growth:
    """What is grown: trees of a batch, and at which depths they may end."""

    requests: int
    """``R``"""
    shape: TreeShape
    reads_paths: bool
    """Whether the drafter reads the accepted paths first, from their buffers."""
    longest: int
    """Tokens of the longest request, at most."""
    depths: Sequence[int]
    """Ascending, the last one the shape's own. There is a draft for each."""
    cut: Callable[[Piece], None] = no_cut
    """Told where a piece of the pass begins, of which a replay may leave some out."""

    def left_out(self, depth: int) -> set[Piece]:
        """Pieces that a draft of a ``depth`` can do without."""
        ends = {("tree", other) for other in self.depths if other != depth}
        return ends | {("after", other) for other in self.depths if other >= depth}


Grown = Mapping[int, TreeDraft]
"""Drafts by depth."""


def end_at(depth: int, growing: Expansion, growth: Growth) -> TreeDraft:
    """The draft that a growth gives which ends here, in a piece of its own if it may also go on."""
    if len(growth.depths) > 1:
        growth.cut(("tree", depth))
    draft = draft_at(depth, growing, growth.shape.nodes)
    if depth < growth.depths[-1]:
        growth.cut(("after", depth))
    return draft


def draft_at(depth: int, growing: Expansion, nodes: int) -> TreeDraft:
    """The draft of at most so many ``nodes`` of a growth that ends here."""
    tokens, topology, expected = growing.tree(nodes)
    # The scheduler takes no more of a chain than the tree has levels; what follows is only ever padding.
    return TreeDraft(tokens, topology, partial(growing.chain, depth), min(depth, nodes), expected=expected)
