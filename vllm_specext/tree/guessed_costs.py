"""What a step of a size that was never tried may cost, from those that were: between drafts of fewer and of more nodes,
as if they were as deep."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise

from vllm_specext.tree.draft_size import NOTHING, DraftSize

Tried = Mapping[DraftSize, float]
"""Costs of what was tried, that of no drafts among them."""


def guessed_cost(size: DraftSize, tried: Tried, slope: float) -> float:
    """``slope``: what one of effort takes, in steps without drafts, before anything is known."""
    guess = _by_nodes(size, tried, slope)
    guess = max([guess, *(cost for other, cost in tried.items() if size.holds(other))])
    return min([guess, *(cost for other, cost in tried.items() if other.holds(size))])


def _by_nodes(size: DraftSize, tried: Tried, slope: float) -> float:
    numbers = sorted({other.nodes for other in tried})
    place = bisect_left(numbers, size.nodes)
    if place == len(numbers):
        last, base = _nearest(numbers[-1], size, tried), tried[NOTHING]
        slope = (tried[last] - base) / last.effort if last.effort else slope * base
        return tried[last] + max(slope, 0.0) * (size.effort - last.effort)

    per_level = _per_level(tried, slope)

    def as_deep(nodes: int) -> float:
        nearest = _nearest(nodes, size, tried)
        return tried[nearest] + per_level * (size.levels - nearest.levels)

    upper = numbers[place]
    if upper == size.nodes:
        return as_deep(upper)
    lower = numbers[place - 1]
    share = (size.nodes - lower) / (upper - lower)
    return (1 - share) * as_deep(lower) + share * as_deep(upper)


def _nearest(nodes: int, size: DraftSize, tried: Tried) -> DraftSize:
    """What was tried with so many ``nodes``, of about the depth of a ``size``."""
    return min((other for other in tried if other.nodes == nodes), key=lambda other: abs(other.levels - size.levels))


def _per_level(tried: Tried, slope: float) -> float:
    """What a level takes: as trees of as many nodes have told, otherwise as in chains, which also have a row more for
    each; and at most what all of a draft does."""
    sizes, base = sorted(tried), tried[NOTHING]
    pairs = [(shallow, deep) for shallow, deep in pairwise(sizes) if shallow.nodes == deep.nodes]
    if not pairs:
        pairs = [(NOTHING, chain) for chain in sizes if chain.nodes == chain.levels][-1:]
    levels = sum(deep.levels - shallow.levels for shallow, deep in pairs)
    rise = sum(tried[deep] - tried[shallow] for shallow, deep in pairs) / levels if levels else slope * base
    most = ((tried[size] - base) / size.levels for size in sizes if size.levels)
    return max(min([rise, *most]), 0.0)
