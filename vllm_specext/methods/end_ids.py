"""The tokens that end a text."""

from collections.abc import Iterable
from typing import Any


def end_ids(*given: int | Iterable[int] | None) -> set[int]:
    """Ids that end a text, from what configurations and tokenizers have under ``eos_token_id``: one, several, none."""
    return {id for ids in given if ids is not None for id in (ids if isinstance(ids, Iterable) else (ids,))}


def ends_of(model: Any) -> set[int]:
    """Ids that end an answer of the model with this ``ModelConfig``, as vLLM has them: those of its configuration and
    of ``generation_config.json``."""
    generation = model.try_get_generation_config() or {}
    return end_ids(generation.get("eos_token_id"), getattr(model.hf_text_config, "eos_token_id", None))
