"""How large a draft tree is, and how it shrinks as the number of running requests grows.

A tree of fewer nodes is narrower and then shallower: a tree that has no more nodes than it is deep is a chain.
"""

from dataclasses import dataclass, replace
from math import ceil


@dataclass(frozen=True)
class TreeShape:
    nodes: int
    """Drafted tokens, the root not counted."""
    depth: int
    """Longest path from the root; the drafter runs ``depth - 1`` times over ``top_k`` nodes."""
    top_k: int
    """Children kept per node, and nodes kept per level to grow from; 1 is a chain."""
    ends: tuple[int, ...] | None = None
    """Smaller depths at which it may end, ascending, where the method has its own (``draft_size.py``)."""


MANY = 1_000_000
"""Last batch size of a schedule's last range; vLLM has no open range."""

SIZES = (1, 2, 3, 4, 5, 7, 15, 31, 63, 127)
"""Numbers of drafted tokens that are chosen among, beside none and the largest. Each has CUDA graphs of its own. Trees
have a power of two of rows, root included, which fill tiles of tree attention: with the 4 query heads that share a head
of Llama-3's cache, 16 rows fill a tile of 64, and 17 need one of 128."""

MOST_ROWS = 512
"""Rows of a step that drafts may fill: where vLLM's default CUDA graphs end."""

UNMEASURED: dict[str, tuple[int, int]] = {
    # Measured for 1 to 16 requests, docs/benchmarks.md: arithmetic is short, and from 8 on short chains are faster.
    "cpu": (7, 48),
    # On an H200, docs/benchmarks.md, steps took 2.4 plain ones with 240 rows of trees, 2.1 with 320 of chains.
    "cuda": (63, 256),
}
"""Per device type: the most nodes, and the most rows of a step, while nothing has been measured."""


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
    return replace(full, nodes=nodes, top_k=top_k)


def sizes_up_to(most: int) -> list[int]:
    """Numbers of drafted tokens to choose among, ascending, where at most so many are drafted."""
    return [0, *(size for size in SIZES if 4 * size <= 3 * most), most]


def largest_schedule(most: int, rows: int = MOST_ROWS) -> list[list[int]]:
    """``[first batch size, last, nodes]`` per range, as vLLM's ``num_speculative_tokens_per_batch_size``: the most that
    may be drafted, at most ``most`` nodes, such that a step has at most so many ``rows``. Every size up to ``most``
    has a range."""
    schedule: list[list[int]] = []
    first = 1
    for nodes in reversed(sizes_up_to(most)):
        last = rows // (1 + nodes) if nodes else MANY
        if last >= first:
            schedule.append([first, last, nodes])
            first = last + 1
    return schedule


def fixed_schedule(most: int, device_type: str) -> list[list[int]]:
    """The same for where nothing is measured. A device type without numbers of its own gets those of CUDA."""
    nodes, rows = UNMEASURED.get(device_type, UNMEASURED["cuda"])
    return largest_schedule(min(most, nodes), rows)


def describe(schedule: list[list[int]], depth: int) -> str:
    """A schedule for people: "1-4: 59, 5-16: 4 (chain), from 17: none"."""

    def size(nodes: int) -> str:
        return "none" if nodes == 0 else f"{nodes} (chain)" if nodes <= depth else str(nodes)

    return ", ".join(
        f"{f'from {first}' if last >= MANY else first if first == last else f'{first}-{last}'}: {size(nodes)}"
        for first, last, nodes in schedule
    )
