"""The documents' tables that come from the code: the methods and their keys, what is refused, what is replaced in vLLM,
and how many nodes are drafted at which load."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from scripts.markdown import code, table
from vllm_specext.engine.changes.catalogue import catalogue
from vllm_specext.options.shown import keys_of
from vllm_specext.refusals import FEATURES, refused
from vllm_specext.registry import METHODS
from vllm_specext.tree.budget import describe, fixed_schedule

DEVICES = {"cuda": "GPU (estimated)", "cpu": "CPU (measured)"}


def methods() -> str:
    rows = []
    for method in METHODS.values():
        options = method.options.model_fields
        drafted = options["num_speculative_tokens"].default
        drafter = options.get("model")
        needed = "no" if drafter is None else "yes" if drafter.is_required() else "for some targets"
        rows.append((code(method.name), method.summary, needed, drafted))
    return table(("method", "how it drafts", "needs a drafter", "`num_speculative_tokens` by default"), rows)


def options(method: str) -> str:
    rows: list[tuple[str, ...]] = []
    for name, key in keys_of(METHODS[method].options).items():
        default = "required" if key.required else key.absent if key.in_words else code(key.absent)
        rows.append((code(name), key.allowed, default, key.meaning))
    return table(("key", "allowed", "default", "meaning"), rows)


def refusals() -> str:
    """A row for each feature that some method is refused; where the reasons differ, they say for whom."""
    rows = []
    for feature in FEATURES:
        cells, reasons = [], defaultdict(list)
        for name, method in METHODS.items():
            found = refused(feature, method.declares)
            cells.append("–" if found is None else "trees refused" if found.trees_only else "refused")
            if found is not None:
                reasons[found.reason].append(name)
        because = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        if reasons:
            rows.append((feature.title, *cells, "; ".join(because) if len(reasons) > 1 else next(iter(reasons))))
    return table(("cannot be combined with", *map(code, METHODS), "because"), rows)


def patches() -> str:
    rows = ((patch.name, code(patch.target), patch.why, patch.how, patch.until) for patch in catalogue())
    return table(("name", "replaces", "why", "how", "until"), rows)


def budget() -> str:
    rows = []
    for method in METHODS.values():
        needed = {"model": "any"} if "model" in method.options.model_fields else {}
        tree = method.options.model_validate({"method": method.name, **needed}).tree
        if tree is not None:
            schedules = (describe(fixed_schedule(tree.nodes, device), tree.depth) for device in DEVICES)
            rows.append((code(method.name), *schedules))
    return table(("method, with `adaptive_drafts` false", *DEVICES.values()), rows)


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods,
    "refusals": refusals,
    "patches": patches,
    "budget": budget,
    **{f"options {name}": partial(options, name) for name in METHODS},
}
