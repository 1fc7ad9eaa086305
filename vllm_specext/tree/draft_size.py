"""How much may be drafted for a request: nothing, a chain, or a tree of so many nodes that is so deep.

A level of a tree costs a pass of the drafter, and the last levels of a deep tree are hardly ever reached where little
is accepted. So a large tree has several depths to choose among, up to that of the largest tree.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from vllm_specext.tree.budget import TreeShape, pool_size, shape_for

DEPTHS = (3, 4, 6, 9)
"""Depths to choose among, beside that of the largest tree, where they are smaller."""

WIDENING = 0.2
"""Exponent of the effective width of a tree, over the number of nodes per level, before it is measured."""


class DraftSize(NamedTuple):
    """A number of drafted tokens and a depth."""

    nodes: int
    levels: int
    """Depth: of a chain, its tokens."""

    @property
    def effort(self) -> float:
        """What the cost grows with beyond all that was tried: a level is a pass of the drafter, a node a row of the
        verification."""
        return self.levels + self.nodes / 8

    @property
    def width(self) -> float:
        """First guess of the effective width."""
        return max(1.0, self.nodes / max(self.levels, 1)) ** WIDENING

    def holds(self, other: "DraftSize") -> bool:
        """Whether the ``other`` has no more of anything."""
        return self.nodes >= other.nodes and self.levels >= other.levels

    @classmethod
    def of(cls, nodes: int, full: TreeShape | None) -> "DraftSize":
        """That of a draft of so many ``nodes``; ``full`` is the largest tree, ``None`` where drafts are chains."""
        return cls(nodes, nodes if full is None else min(nodes, full.depth))


NOTHING = DraftSize(0, 0)


def depths_of(shape: TreeShape) -> list[int]:
    """Depths at which a tree of this ``shape`` may end, ascending, its own the last. Small trees and chains have none
    but their own: their nodes go where they are most likely to be accepted. A method's own depths are all trees'."""
    if shape.ends is None and shape.nodes <= 2 * shape.depth:
        return [shape.depth]
    ends = DEPTHS if shape.ends is None else shape.ends
    shallow = (depth for depth in ends if depth < shape.depth and pool_size(depth, shape.top_k) >= shape.nodes)
    return [*shallow, shape.depth]


def ending_at(shape: TreeShape, levels: int | None) -> TreeShape:
    """A tree of this ``shape`` that ends at so many ``levels``, if it may."""
    return replace(shape, depth=levels) if levels in depths_of(shape) else shape


def draft_sizes(numbers: Iterable[int], full: TreeShape | None, any_depth: bool) -> list[DraftSize]:
    """Sizes of drafts of these ``numbers`` of tokens, ascending: with ``any_depth`` at all depths at which they may
    end, otherwise as deep as they can be. ``full`` is the largest tree, ``None`` where drafts are chains."""
    found = {DraftSize.of(nodes, full) for nodes in numbers}
    if full is not None and any_depth:
        found |= {DraftSize(size.nodes, levels) for size in found for levels in depths_of(shape_for(size.nodes, full))}
    return sorted(found)
