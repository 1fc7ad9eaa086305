"""``vllm-specext methods [NAME]``: the methods, their keys and what is refused, from what the engine itself reads."""

import json
from collections import defaultdict
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Any

import typer

from vllm_specext.cli.lines import show
from vllm_specext.errors import ConfigurationError
from vllm_specext.options.shown import keys_of
from vllm_specext.refusals import Refused
from vllm_specext.refusals import refused_to as refused_by_declaration
from vllm_specext.registry import METHODS


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="Show only this method: its keys, and what it is refused.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything about each as JSON.")] = False,
) -> None:
    """Show the methods and the combinations that are refused, or one method with its --speculative-config keys."""
    if name is not None and name not in METHODS:
        raise ConfigurationError(f"NAME is {name!r}, but must be one of {', '.join(METHODS)}.")
    if as_json:
        typer.echo(json.dumps({each: described(each) for each in METHODS if name in (None, each)}, indent=2))
    elif name is None:
        show_all()
    else:
        show_one(name)


def show_all() -> None:
    show("Methods (vllm-specext methods NAME shows one with its keys):")
    for method in METHODS.values():
        show(f"{method.name}: {method.summary}", 2)
    show("")
    show("Refused at start:")
    for feature, refusals in groupby(refused_methods().items(), key=lambda entry: entry[0].feature):
        who: defaultdict[str, list[str]] = defaultdict(list)
        for refused, names in sorted(refusals, key=lambda entry: entry[0].trees_only):
            those = "every method" if len(names) == len(METHODS) else ", ".join(names)
            who[refused.reason].append(f"draft trees of {those}" if refused.trees_only else those)
        because = (f"{' and '.join(those)}, because {reason}" for reason, those in who.items())
        show(f"{feature}: {'; '.join(because)}", 2)


def show_one(name: str) -> None:
    show(f"{name}: {METHODS[name].summary}")
    show("")
    show("Keys of --speculative-config:")
    keys = keys_of(METHODS[name].options)
    for key, entry in keys.items():
        absent = "required" if entry.required else f"by default {entry.absent}"
        show(f"{key} ({entry.allowed}; {absent}): {entry.meaning}", 2)
    show("")
    show(f"Refused to {name} at start:")
    for feature, reason, trees_only in refused_to(name):
        # A method without this key drafts nothing but trees.
        chains = "; chains, which tree_top_k 1 drafts, are not refused" if trees_only and "tree_top_k" in keys else ""
        show(f"{feature}, because {reason}{chains}", 2)


def described(name: str) -> dict[str, Any]:
    """Everything about the method ``name``, for JSON."""
    return {
        "summary": METHODS[name].summary,
        "keys": {key: asdict(entry) for key, entry in keys_of(METHODS[name].options).items()},
        "refused": [refused._asdict() for refused in refused_to(name)],
    }


def refused_methods() -> dict[Refused, list[str]]:
    """The methods that each refusal is for. Refusals of the same feature follow each other."""
    found: dict[Refused, list[str]] = {}
    for name in METHODS:
        for refused in refused_to(name):
            found.setdefault(refused, []).append(name)
    features = [refused.feature for refused in found]
    return dict(sorted(found.items(), key=lambda entry: features.index(entry[0].feature)))


def refused_to(name: str) -> list[Refused]:
    """The features that the method ``name`` is refused."""
    return refused_by_declaration(METHODS[name].declares)
