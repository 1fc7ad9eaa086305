"""Which tokens two vocabularies share, byte for byte: what TLI can draft. Needs no torch."""

from collections.abc import Collection, Iterable, Sequence


def shared_tokens(
    target: Sequence[bytes | None],
    drafter: Sequence[bytes | None],
    *,
    target_ends: Iterable[int],
    drafter_ends: Iterable[int],
) -> dict[int, int]:
    """The drafter's id -> the target's, ascending by the drafter's.

    Bytes by id, ``None`` for markers, and the ids that end a text. Of ordinary tokens with the same bytes the lowest id
    counts, on both sides. The lowest ends are one more pair; they belong together by their role, whatever they are
    called. Markers are shared in no other case.
    """
    target_end, drafter_end = _ends(target, target_ends), _ends(drafter, drafter_ends)
    theirs, mine = _lowest_ids(target, target_end), _lowest_ids(drafter, drafter_end)
    pairs = {mine[text]: theirs[text] for text in mine.keys() & theirs.keys()}
    if target_end and drafter_end:
        pairs[min(drafter_end)] = min(target_end)
    return dict(sorted(pairs.items()))


def coverage(text: Sequence[int], shared: Collection[int]) -> float:
    """Share of a text's target tokens that are among the ``shared`` target ids; 0 for an empty text."""
    return sum(token in shared for token in text) / len(text) if text else 0.0


def _ends(vocabulary: Sequence[bytes | None], ends: Iterable[int]) -> set[int]:
    """The ends that the model has: a tokenizer or a configuration may name ids beyond its embedding."""
    return {end for end in ends if 0 <= end < len(vocabulary)}


def _lowest_ids(vocabulary: Sequence[bytes | None], ends: Collection[int]) -> dict[bytes | None, int]:
    ordinary = list(vocabulary)
    for end in ends:
        ordinary[end] = None
    # Of ids with the same bytes the last one counts, so the lowest goes last.
    found = dict(zip(reversed(ordinary), reversed(range(len(ordinary))), strict=True))
    found.pop(None, None)
    found.pop(b"", None)
    return found
