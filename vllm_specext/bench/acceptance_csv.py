"""``NAME-by-position.csv``: acceptance by position, with the columns of the speculators project's ``acceptance.csv``.

These are ``subset`` (here the task), ``num_drafts``, ``num_draft_tokens``, ``num_accepted_tokens``,
``acceptance_length`` and ``acceptance_at_pos_0``, ``acceptance_at_pos_1``, ...: the share of drafts whose token at this
position was accepted. A tree's position is its depth, and its draft tokens are its nodes. Columns of ours come first,
because a file of theirs is about one method at one load.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_specext.bench.results import Row

OURS = ("method", "num_speculative_tokens", "max_concurrency", "request_rate", "temperature", "top_p")
COUNTS = {
    "num_drafts": "spec_decode_num_drafts",
    "num_draft_tokens": "spec_decode_draft_tokens",
    "num_accepted_tokens": "spec_decode_accepted_tokens",
}
"""Their columns, and vLLM's names for the same."""
POSITIONS = "spec_decode_per_position_acceptance_rates"


def write_by_position(rows: Sequence[Row], path: Path) -> bool:
    """Write a line for each of ``rows`` that drafted; no file where none did. Whether there is a file."""
    lines = [line(row) for row in rows if row.get(COUNTS["num_drafts"])]
    if not lines:
        return False
    columns = [key for key in OURS if any(one.get(key) not in (None, "") for one in lines)]
    columns += ["subset", *COUNTS, "acceptance_length"]
    deepest = max(len(row.get(POSITIONS) or []) for row in rows)
    columns += [position(number) for number in range(deepest)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    return True


def position(number: int) -> str:
    return f"acceptance_at_pos_{number}"


def line(row: Row) -> dict[str, Any]:
    counts = {name: row[key] for name, key in COUNTS.items()}
    rates = {position(number): rate for number, rate in enumerate(row.get(POSITIONS) or [])}
    length = round(1 + counts["num_accepted_tokens"] / counts["num_drafts"], 4)
    return {
        **{key: row.get(key) for key in OURS},
        "subset": row["task"],
        **counts,
        "acceptance_length": length,
        **rates,
    }
