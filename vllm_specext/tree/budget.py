"""How large a draft tree is, and how it shrinks as the number of running requests grows.

A tree of fewer nodes is narrower and then shallower: a tree that has no more nodes than it is deep is a chain.
"""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class TreeShape:
    nodes: int
    """Drafted tokens, the root not counted."""
    depth: int
    """Longest path from the root; the drafter runs ``depth - 1`` times over ``top_k`` nodes."""
    top_k: int
    """Children kept per node, and nodes kept per level to grow from; 1 is a chain."""


MANY = 1_000_000
"""Last batch size of a schedule's last range; vLLM has no open range."""

CAPS: dict[str, tuple[tuple[int, int], ...]] = {
    # Measured up to 16, see docs/benchmarks.md: where arithmetic is what is short, short chains beat every tree.
    "cpu": ((8, 4), (16, 2), (MANY, 0)),
    # Not measured: estimates from what the literature reports for trees of about 60 nodes on one GPU, such that a step
    # of each range has at most 512 rows, which is where vLLM's default CUDA graphs end.
    # The published trees of up to 62 nodes are whole where few requests run.
    "cuda": ((4, 63), (16, 31), (32, 15), (64, 6), (128, 3), (MANY, 0)),
}
"""Per device type: up to this many running requests, at most so many nodes pay."""


def pool_size(depth: int, top_k: int) -> int:
    """Nodes that an expansion proposes, of which the best are kept: K, then K of each of K nodes per further level."""
    return top_k + (depth - 1) * top_k**2


def lookahead(depth: int, top_k: int, root_slots: int) -> int:
    """Slots that drafting a tree writes from the position of the last sampled token on, of which that token takes
    ``root_slots``."""
    return root_slots + (depth - 1) * top_k


def shape_for(nodes: int, full: TreeShape) -> TreeShape:
    """The shape of a tree of ``nodes`` (0 to ``full.nodes``) where ``full`` is the largest."""
    if nodes <= full.depth:
        return TreeShape(nodes, nodes, 1)
    if nodes == full.nodes:
        return full
    top_k = ceil(full.top_k * nodes / full.nodes)
    while pool_size(full.depth, top_k) < nodes:
        top_k += 1
    return TreeShape(nodes, full.depth, top_k)


def default_schedule(full: TreeShape, device_type: str) -> list[list[int]]:
    """``[first batch size, last, nodes]`` per range, as vLLM's ``num_speculative_tokens_per_batch_size``.

    A device type without a table of its own gets that of CUDA.
    """
    schedule: list[list[int]] = []
    first = 1
    for last, cap in CAPS.get(device_type, CAPS["cuda"]):
        nodes = min(full.nodes, cap)
        if schedule and schedule[-1][2] == nodes:
            schedule[-1][1] = last
        else:
            schedule.append([first, last, nodes])
        first = last + 1
    return schedule


def describe(schedule: list[list[int]], depth: int) -> str:
    """A schedule for people: "1-4: 59, 5-16: 4 (chain), from 17: none"."""

    def size(nodes: int) -> str:
        return "none" if nodes == 0 else f"{nodes} (chain)" if nodes <= depth else str(nodes)

    return ", ".join(
        f"{f'from {first}' if last >= MANY else first if first == last else f'{first}-{last}'}: {size(nodes)}"
        for first, last, nodes in schedule
    )
