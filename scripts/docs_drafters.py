"""The documents' tables of released drafters."""

from collections.abc import Callable

from scripts.markdown import code, table
from scripts.released_drafters import IN_SHORT, RELEASED, Released

HUB = "https://huggingface.co/"
SHORT_NAMES = {
    "eagle3-tree": "EAGLE-3",
    "peagle-tree": "P-EAGLE",
    "dflash-tree": "DFlash",
    "dspark-tree": "DSpark",
    "griffin": "GRIFFIN",
    "moa": "MoA",
    "mtp-tree": "assistant",
    "draft-model-tree": "small model",
    "pard-tree": "PARD",
}


def released() -> str:
    """A row for each target and method. A target's name stands in its first row."""
    rows, last = [], ""
    for one in RELEASED:
        drafters = "<br>".join(f"[{drafter}]({HUB}{drafter})" for drafter in one.drafters)
        rows.append((code(one.target) if one.target != last else "", code(one.method), drafters or "none", one.loaded))
        last = one.target
    return table(("target", "method", "drafters", "loaded by us"), rows)


def in_short() -> str:
    """A row for each target: its methods, each with a link to the first drafter, if it needs one."""
    rows = []
    for target in IN_SHORT:
        own = [one for one in RELEASED if one.target == target]
        loaded = sorted({one.loaded for one in own})
        rows.append((target.partition("/")[2], ", ".join(map(first, own)), "; ".join(loaded)))
    return table(("target", "drafters", "loaded by us"), rows)


def first(one: Released) -> str:
    if not one.drafters:
        return f"its own module ({code(one.method)})"
    drafter = one.drafters[0]
    if "/EAGLE-" in drafter:
        return f"[EAGLE]({HUB}{drafter}) with {code(one.method)}"
    return f"[{SHORT_NAMES[one.method]}]({HUB}{drafter})"


TABLES: dict[str, Callable[[], str]] = {
    "released drafters": released,
    "released drafters in short": in_short,
}
