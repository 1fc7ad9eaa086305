"""What is known of prepared data: ``stats.json``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vllm_specext.training.data.row import Row

FORMAT = "vllm-specext data 1"


def statistics(
    train: Sequence[Row], valid: Sequence[Row], counted: Mapping[str, Counter[str]], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """Sizes of both parts, how often each token is in the loss of training, what was ``counted`` on the way, and what
    stands ``beside`` it, such as the settings."""
    return {
        "format": FORMAT,
        **beside,
        "train": sizes(train),
        "valid": sizes(valid),
        **{name: {str(key): n for key, n in sorted(counts.items()) if n} for name, counts in counted.items()},
        "token_counts": dict(zip(("ids", "counts"), _columns(token_counts(train)), strict=True)),
    }


MANY = 0.05
"""Of what is left out, a share above this is worth a line."""


def remarks(stats: Mapping[str, Any]) -> list[str]:
    """What became of many rows, for the person who gave them, from what is in ``stats.json``."""
    # Of a conversation there may be several rows, each of which may be left out.
    rows = max(sum(stats["read"].values()), stats["train"]["rows"] + stats["valid"]["rows"])
    asked = stats["read"].get("answered_by_target", 0)
    told = {"dropped": (rows, "rows are left out"), "ended_early": (asked, "conversations end before their last turn")}
    return [
        f"{count} {what}: {reason}"
        for name, (all_of_them, what) in told.items()
        for reason, count in stats[name].items()
        if count > MANY * all_of_them
    ]


def sizes(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows, tokens, tokens in the loss, and how many rows are how long: a row of n tokens counts under the smallest
    power of two that is not below n."""
    lengths = Counter(1 << (len(row) - 1).bit_length() for row in rows)
    return {
        "rows": len(rows),
        "tokens": sum(map(len, rows)),
        "loss_tokens": sum(row.loss_tokens for row in rows),
        "lengths": {str(length): lengths[length] for length in sorted(lengths)},
    }


def token_counts(rows: Sequence[Row]) -> Counter[int]:
    """How often each id is in the loss: what `vllm_specext.methods.token_counts` makes a draft vocabulary of."""
    found: Counter[int] = Counter()
    for row in rows:
        ids, counts = np.unique(row.token_ids[row.loss_mask], return_counts=True)
        found.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
    return found


def read_token_counts(stats: Mapping[str, Any]) -> Counter[int]:
    """The counts in what was read of a ``stats.json``."""
    counts = stats["token_counts"]
    return Counter(dict(zip(counts["ids"], counts["counts"], strict=True)))


def _columns(counts: Counter[int]) -> tuple[list[int], list[int]]:
    ids = sorted(counts)
    return ids, [counts[id] for id in ids]
