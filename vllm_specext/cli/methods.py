"""``vllm-specext methods``: what can be asked for, and what is refused, from the tables that the engine itself uses."""

import json

import rich
from rich.markup import escape
from rich.table import Column, Table

from vllm_specext.options import MethodOptions
from vllm_specext.refusals import REFUSALS
from vllm_specext.registry import METHODS


def methods() -> None:
    """Show the methods, their --speculative-config keys, and the combinations that are refused."""
    for method in METHODS.values():
        rich.print(options_table(method.name, method.summary, method.options))
    rich.print(refusals_table())


def options_table(name: str, summary: str, options: type[MethodOptions]) -> Table:
    table = Table(
        Column("key", overflow="fold"), "default", "meaning", title=f"{name}: {summary}", title_justify="left"
    )
    for key, field in options.model_fields.items():
        if key == "method":
            table.add_row(key, f'"{name}"', "selects this method")
            continue
        default = "required" if field.is_required() else json.dumps(field.default)
        table.add_row(key, default, escape(field.description or ""))
    return table


def refusals_table() -> Table:
    table = Table("cannot be combined with", *METHODS, "because", title="Refused at start", title_justify="left")
    for refusal in REFUSALS:
        mark = "trees refused" if refusal.trees_only else "refused"
        # Not "works": another row may refuse more of the same to that method.
        marks = (mark if name in refusal.methods else "–" for name in METHODS)
        table.add_row(refusal.feature, *marks, refusal.reason)
    return table
