"""Tables of ``docs/vllm_versions.md``: what vLLM 0.33 changed of what the adapter asks for, from what was recorded."""

from collections.abc import Callable
from functools import cache

from scripts.markdown import code, table
from scripts.record_vllm import DATA
from scripts.version_readings import reading_of
from vllm_specext.cli.against import AgainstReport, compare_sources
from vllm_specext.engine.changes.against.comparison import Finding, our_adapter
from vllm_specext.engine.changes.against.recorded import Recorded

BEFORE, NOW = "0.32", "0.33"


@cache
def report() -> AgainstReport:
    """The newer version held against the adapter, and against the older one."""
    return compare_sources(our_adapter(), *(Recorded(DATA / f"vllm-{minor}.json") for minor in (NOW, BEFORE)))


def counts() -> str:
    """A sentence on what was checked and found."""
    found = report()
    checked = ", ".join(f"{count} {what}" for what, count in found.checked.items())
    return f"Checked: {checked}. Broken with {NOW}: {len(found.broken)}. Changed inside: {len(found.changed_inside)}."


def changed_inside() -> str:
    """By what was found when they were read."""
    found: dict[str, list[Finding]] = {}
    for finding in report().changed_inside:
        found.setdefault(reading_of(finding.path) or "**Not read yet.**", []).append(finding)
    return table(("in vLLM", "ours", "what it means"), (_grouped(findings, text) for text, findings in found.items()))


def _grouped(findings: list[Finding], text: str) -> tuple[str, ...]:
    paths = (code(finding.path.removeprefix("vllm.")) for finding in findings)
    places = dict.fromkeys(code(finding.place) for finding in findings)
    return ", ".join(paths), ", ".join(places), text


TABLES: dict[str, Callable[[], str]] = {
    "vllm versions: counts": counts,
    "vllm versions: inside": changed_inside,
}
