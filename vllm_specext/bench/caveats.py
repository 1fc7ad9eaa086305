"""What a reader has to know before believing the figures, as sentences."""

from collections.abc import Sequence
from typing import Any

from vllm_specext.bench.results import Results, Row, baseline, labels
from vllm_specext.bench.spread import WIDE, is_one_round, is_unsure, width
from vllm_specext.measure.others import is_busy

BUNDLED = "bundled:target"


def caveats(results: Results, head: dict[str, Any]) -> list[str]:
    """The most serious first; none where there is nothing to say."""
    rows = results.rows
    return [
        *broken_promises(rows),
        *busy_machine(rows, head.get("others_share_of_cores")),
        *wide_spreads(rows),
        *(f"The row `{name}` was left out: {why}" for name, why in head["left_out_rows"].items()),
        *small_target(rows, head["target"]),
    ]


def broken_promises(rows: Sequence[Row]) -> list[str]:
    """Rows whose tokens should be those of plain decoding, and are not. vLLM as it is rounds otherwise."""
    base = baseline(rows)
    wrong = [
        label
        for label, row in zip(labels(rows, True), rows, strict=True)
        if row.get("identical") is False and row.get("same_tokens_promised", True) and row["method"] != base
    ]
    if not wrong:
        return []
    return [
        f"**Not the tokens of plain decoding**: {', '.join(dict.fromkeys(wrong))}. In float32 this is a fault; in "
        "bfloat16 one of two almost equally likely tokens may take the place of the other."
    ]


def busy_machine(rows: Sequence[Row], others: dict[str, float] | None) -> list[str]:
    if not others or not is_busy(others) or not any("median_e2el_ms" in row for row in rows):
        return []
    return [
        f"**The machine was busy**: other programs, or other guests of its host, took {others['at_start']:.0%} of the "
        f"processor cores before anything was loaded, {others['while_measuring']:.0%} on average while measuring and "
        f"{others['highest']:.0%} at most. The figures of speed are in doubt; acceptance and tokens are not."
    ]


def wide_spreads(rows: Sequence[Row]) -> list[str]:
    own = [row for row in rows if "speedup" in row and row["method"] != baseline(rows)]
    if not (unsure := [row for row in own if is_unsure(row)]):
        return []
    if all(is_one_round(row) for row in unsure):
        return [
            f"**One round**: nobody knows how far the {len(unsure)} speed-ups marked ~ would be from those of another "
            "round; take --rounds 3 or more."
        ]
    widest = max(unsure, key=width)
    return [
        f"**Wide spreads**: {len(unsure)} of {len(own)} speed-ups are marked ~ and drawn hollow, because their rounds "
        f"differ by more than {WIDE:.0%} of the median, {width(widest):.0%} at most. Do not read them as results."
    ]


def small_target(rows: Sequence[Row], target: str) -> list[str]:
    if target != BUNDLED or not any("speedup" in row for row in rows):
        return []
    return [
        "The bundled target is small, so drafts cost more beside it than beside a large model. Its speed-ups say "
        "nothing about yours."
    ]
