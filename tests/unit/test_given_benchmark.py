"""The benchmark of predicted answers without an engine: what is changed in a text, and the figures of rows."""

import json
import random
from typing import Any

from benchmarks import given_edits
from tests.unit.docs_pages import ROOT

TEXT = "import os\n\n\ndef first(value):\n    return value\n    # 1 2\n"


def test_a_word_is_changed_in_three_lines() -> None:
    for seed in range(20):
        changed = given_edits.with_changed_lines(TEXT, random.Random(seed))
        assert changed is not None
        pairs = list(zip(TEXT.splitlines(), changed.splitlines(), strict=True))
        assert sum(one != other for one, other in pairs) == given_edits.LINES
        assert all(one == other or "renamed_here" in other for one, other in pairs)


def test_a_text_of_too_few_lines_is_not_taken() -> None:
    assert given_edits.with_changed_lines("import os\n1\n2\n3\n", random.Random(0)) is None


def row(passes: int, verifications: int, accepted: int, seconds: float, identical: bool = True) -> dict[str, Any]:
    own = {"passes": passes, "verifications": verifications, "accepted": accepted}
    return {
        "none": {"seconds": 2.0, "identical": True},
        "edited": own | {"seconds": seconds, "identical": identical},
    }


def test_figures_by_hand() -> None:
    most = given_edits.ANSWER - 1
    found = given_edits.figures("edited", [row(20, 16, most - 20, 0.5), row(30, 24, most - 30, 1.0)])
    assert found["tokens_per_pass"] == round(2 * most / 50, 3)
    assert found["tokens_per_verification"] == round(1 + (2 * most - 50) / 40, 3)
    assert found["speed"] == 3.0
    assert found["speed_of_all"] == round(4 / 1.5, 3)
    assert found["identical"]
    assert not given_edits.figures("edited", [row(20, 16, 9, 1.0), row(20, 16, 9, 1.0, identical=False)])["identical"]
    assert given_edits.figures("edited", [row(20, 0, 0, 1.0), row(20, 0, 0, 1.0)])["tokens_per_verification"] is None


def test_what_was_measured_shows_what_the_method_promises() -> None:
    """Five tokens per verification where three lines are wrong, at most 3 % lost to nonsense, and identical answers;
    with trees fewer passes than with either alone."""
    told = json.loads((ROOT / "benchmarks/results/cpu/given_edits.json").read_text(encoding="utf-8"))
    alone, both = ({one["prediction"]: one for one in told[name]["figures"]} for name in ("given", "griffin"))
    assert set(alone) == set(given_edits.KINDS)
    assert set(both) == {"none", *given_edits.KINDS}
    assert all(one["identical"] and one["files"] == given_edits.FILES for one in (*alone.values(), *both.values()))
    assert alone["edited"]["tokens_per_pass"] >= 5
    assert min(alone[kind]["speed"] for kind in given_edits.KINDS) >= 0.97
    assert both["edited"]["tokens_per_pass"] > max(alone["edited"]["tokens_per_pass"], both["none"]["tokens_per_pass"])
