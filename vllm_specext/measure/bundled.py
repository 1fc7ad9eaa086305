"""The bundled models and prompts, and a ``--speculative-config`` of every method on them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "demo"
MODELS = FOLDER / "models"
TARGET = MODELS / "target"
PROMPTS = FOLDER / "prompts.json"
"""Held out: neither the target nor a drafter was trained on them."""
MAX_TOKENS = 96
"""Length of the longest answer to them where the demonstration's own figures are measured."""

ALWAYS: dict[str, Any] = {"adaptive_drafts": False}
"""Drafts of one length whether they pay or not, because it is drafts that are looked at."""
GRIFFIN_CHAIN: dict[str, Any] = ALWAYS | {
    "method": "griffin",
    "model": str(MODELS / "griffin"),
    "num_speculative_tokens": 4,
    "tree_top_k": 1,
}
GRIFFIN_TREE: dict[str, Any] = {
    "method": "griffin",
    "model": str(MODELS / "griffin"),
    "num_speculative_tokens": 24,
    "tree_top_k": 4,
    "tree_depth": 4,
    "num_speculative_tokens_per_batch_size": [[1, 16, 24]],
}
"""A tree as deep as the chain is long, so that the two differ by the tree's width alone, at every load that is
measured."""
EAGLE3_TREE: dict[str, Any] = GRIFFIN_TREE | {"method": "eagle3-tree", "model": str(MODELS / "eagle3")}
DFLASH: dict[str, Any] = {"method": "dflash", "model": str(MODELS / "dflash"), "num_speculative_tokens": 4}
"""vLLM's own method, which drafts chains; as long as the block of the bundled drafter has positions to draft."""
DFLASH_TREE: dict[str, Any] = GRIFFIN_TREE | {"method": "dflash-tree", "model": str(MODELS / "dflash")}
MOA_TREE: dict[str, Any] = GRIFFIN_TREE | {"method": "moa", "model": str(MODELS / "moa")}
SWIFT: dict[str, Any] = {
    "method": "swift",
    "num_speculative_tokens": 8,
    "num_speculative_tokens_per_batch_size": [[1, 16, 8]],
    "swift_confidence": 0.3,
    "swift_max_steps": 150,
}
"""A small target is never sure of a draft, so chains go on for longer than by default. The search ends within the
demonstration."""
SLEM: dict[str, Any] = ALWAYS | {
    "method": "slem",
    "model": str(MODELS / "foreign_bpe"),
    "num_speculative_tokens": 4,
    "draft_confidence": 0.2,
}
"""A small drafter is hardly ever sure, so drafts go on for longer than by default."""
TLI: dict[str, Any] = ALWAYS | {"method": "tli", "model": str(MODELS / "foreign_bpe"), "num_speculative_tokens": 4}
SLRS: dict[str, Any] = ALWAYS | {"method": "slrs", "model": str(MODELS / "foreign_bytes"), "num_speculative_tokens": 2}


def as_long_as_it_pays(speculative: dict[str, Any]) -> dict[str, Any]:
    """The same with the default's choice of lengths."""
    return {key: value for key, value in speculative.items() if key not in CHOICE}


CHOICE = frozenset({*ALWAYS, "num_speculative_tokens_per_batch_size"})
"""Keys that keep the scheduler from choosing the number of drafted tokens."""

Configurations = Sequence[tuple[str, dict[str, Any]]]
"""Names, each with its ``--speculative-config``."""
CONFIGURATIONS: Configurations = (
    ("griffin-chain", GRIFFIN_CHAIN),
    ("griffin-tree", GRIFFIN_TREE),
    ("eagle3-tree", EAGLE3_TREE),
    ("dflash-tree", DFLASH_TREE),
    ("moa-tree", MOA_TREE),
    ("swift", as_long_as_it_pays(SWIFT)),
    ("slem", SLEM),
    ("tli", TLI),
    ("slrs", as_long_as_it_pays(SLRS)),
)
"""Every method that has a bundled drafter or needs none, once, and GRIFFIN as a chain and as a tree: the rows of the
demonstration after plain decoding's. The two methods whose drafts cost most beside what the small target saves draft
where that is measured to pay."""


def bundled_prompts() -> list[dict[str, str]]:
    """The prompts, each with its ``text`` and its ``kind``, which is ``code`` or ``prose``."""
    found: list[dict[str, str]] = json.loads(PROMPTS.read_text(encoding="utf-8"))
    return found
