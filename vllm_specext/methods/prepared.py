"""What a method's ``prepare`` hands to vLLM."""

from dataclasses import dataclass, field
from typing import Any

from vllm_specext.options.base import MethodOptions


@dataclass(frozen=True)
class Prepared:
    fields: dict[str, Any]
    """Values for vLLM's own speculative keys."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Keys of the drafter's ``config.json`` with the values that take the place of the file's."""
    draft_vocabulary: tuple[int, ...] | None = None
    """The target's tokens that the drafter scores, ascending; ``None`` for all."""
    options: MethodOptions | None = None
    """The user's keys with defaults that follow from the drafter; ``None`` where none do."""
    is_latent: bool = False
    """Whether the drafter's layers have multi-head latent attention (MLA). vLLM's ``use_mla`` does not know it of all
    drafters (vllm#45764)."""
