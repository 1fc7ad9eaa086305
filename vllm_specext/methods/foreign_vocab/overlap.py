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
    by_bytes = _lowest_ids(target, target_end)
    mine = _lowest_ids(drafter, drafter_end)
    pairs = {d: by_bytes[text] for text, d in mine.items() if text in by_bytes}
    if target_end and drafter_end:
        pairs[min(drafter_end)] = min(target_end)
    return dict(sorted(pairs.items()))


def coverage(text: Sequence[int], shared: Collection[int]) -> float:
    """Share of a text's target tokens that are among the ``shared`` target ids; 0 for an empty text."""
    return sum(token in shared for token in text) / len(text) if text else 0.0


def _ends(vocabulary: Sequence[bytes | None], ends: Iterable[int]) -> set[int]:
    """Those that the model has: a tokenizer or a configuration may name ids beyond its embedding."""
    return {end for end in ends if 0 <= end < len(vocabulary)}


def _lowest_ids(vocabulary: Sequence[bytes | None], ends: Collection[int]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for token, text in enumerate(vocabulary):
        if text and token not in ends:
            found.setdefault(text, token)
    return found
