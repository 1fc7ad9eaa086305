"""``vllm-specext doctor --against``: whether we would fit a vLLM that is not installed, and what it changed."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

import vllm_specext
from vllm_specext.cli.lines import show
from vllm_specext.engine.changes.against.comparison import (
    Adapter,
    Finding,
    Source,
    broken,
    changed_inside,
    our_adapter,
)
from vllm_specext.engine.changes.against.facts import Facts, installed_facts
from vllm_specext.engine.changes.against.tree import open_tree
from vllm_specext.engine.changes.guard import is_supported


@dataclass(frozen=True)
class AgainstReport:
    vllm: str
    """Version of the other vLLM."""
    installed: str | None
    supported: bool
    """Whether this version of ours says that it works with that vLLM."""
    broken: list[Finding]
    changed_inside: list[Finding]
    checked: dict[str, int]


def compare(path: Path) -> AgainstReport:
    """Read the vLLM in ``path`` and hold our source against it."""
    return compare_sources(our_adapter(), Facts(open_tree(path)), installed_facts())


def compare_sources(adapter: Adapter, other: Source, installed: Source | None) -> AgainstReport:
    return AgainstReport(
        vllm=other.version,
        installed=None if installed is None else installed.version,
        supported=is_supported(other.version),
        broken=broken(adapter, other, installed),
        changed_inside=[] if installed is None else changed_inside(adapter, other, installed),
        checked={
            "signatures": len(adapter.signatures),
            "replacements": len(adapter.catalogue),
            "names": len({use.path for use in adapter.uses}),
            "calls": sum(use.call is not None for use in adapter.uses),
            "kernels": len(adapter.bodies) + len(adapter.refused),
            "classes": len(adapter.inheritances),
            "attributes": len(adapter.attributes),
        },
    )


def check_against(path: Path, as_json: bool) -> None:
    """Print the report. Status 1 if that version breaks something."""
    report = compare(path)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        show_against(report)
    if report.broken:
        raise typer.Exit(1)


def show_against(report: AgainstReport) -> None:
    runs = "runs" if report.supported else "does not run"
    installed = f"vLLM {report.installed} is installed" if report.installed else "no vLLM is installed"
    show(f"vllm-specext {vllm_specext.__version__} {runs} with vLLM {report.vllm}; {installed}.")
    show("checked: " + ", ".join(f"{count} {what}" for what, count in report.checked.items()))
    style = "red" if report.broken else "green"
    show(f"broken: {len(report.broken)}", style=style)
    show_findings(report.broken)
    if report.installed is None:
        show("changed inside: not known, because it is compared with an installed vLLM")
    else:
        show(f"changed inside since {report.installed}, so look again: {len(report.changed_inside)}")
        show_findings(report.changed_inside)


def show_findings(findings: list[Finding]) -> None:
    for finding in findings:
        show(f"{finding.path}: {finding.what} ({finding.place})", 2)
