"""vLLM's own methods that every run is asked to compare with, and why one cannot be."""

from importlib.util import find_spec
from typing import Any

SUFFIX: dict[str, Any] = {
    "method": "suffix",
    "num_speculative_tokens": 24,
    "suffix_decoding_max_cached_requests": 0,
}
"""Suffix decoding: what followed the same tokens before, in this answer and its prompt. The drafts are at most as long
as by vLLM's default. Earlier answers are not kept, as they are by default: every round asks the same prompts, so that
the drafts would be the answers themselves."""
SUFFIX_PACKAGE = "arctic_inference"
DRAFT_TOKENS = 4
"""Length of the chains of a small model, as of the bundled chains."""


def draft_model_configs(drafter: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """vLLM's own chain of a small model with the target's tokenizer, and our tree of the same model."""
    chain = {"method": "draft_model", "model": drafter, "num_speculative_tokens": DRAFT_TOKENS}
    return chain, {"method": "draft-model-tree", "model": drafter}


def left_out(names: set[str], bundled: bool, quick: bool) -> dict[str, str]:
    """Rows that are not among ``names``, each with the reason as a sentence. A quick run has fewer rows, and nobody
    misses them."""
    found = {}
    if "suffix" not in names and not quick:
        found["suffix"] = (
            "vLLM's suffix decoding needs the Python package arctic-inference, which is not installed: "
            "pip install arctic-inference==0.1.1."
        )
    if "draft-model" not in names and bundled and not quick:
        found["draft-model"] = (
            "no small model with the bundled target's tokenizer is bundled; name one with --draft-model."
        )
    return found


def has_suffix() -> bool:
    return find_spec(SUFFIX_PACKAGE) is not None
