"""The tokens that end a text."""

from collections.abc import Iterable


def end_ids(*given: int | Iterable[int] | None) -> set[int]:
    """Ids that end a text, from what configurations and tokenizers have under ``eos_token_id``: one, several, none."""
    return {id for ids in given if ids is not None for id in (ids if isinstance(ids, Iterable) else (ids,))}
