"""Which options each command of ``bench`` has, and what it makes of them."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from vllm_specext.bench import offline
from vllm_specext.cli import app
from vllm_specext.cli.bench_options import Options, takes

command_line = import_module("vllm_specext.cli.bench")
COMMON = ["output", "target", "config", "eagle", "prompts", "prompts_per_task", "tokens", "quick", "arguments"]


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("acceptance", []),
        ("throughput", ["rounds", "concurrency"]),
        ("latency", ["rounds"]),
        ("serve", ["url", "request_rate", "rounds"]),
        ("sweep", ["rounds", "concurrency", "nodes"]),
    ],
)
def test_a_command_has_the_common_options_and_its_own(command: str, more: list[str]) -> None:
    found: Any = typer.main.get_command(command_line.app)
    own = found.commands[command]
    assert {each.name for each in own.params} == {*COMMON, *more}
    assert own.help
    (output,) = (each for each in own.params if each.name == "output")
    assert output.required


def asked(monkeypatch: pytest.MonkeyPatch, folder: Path, *given: str) -> dict[str, Any]:
    """What ``bench sweep`` would measure."""
    found: dict[str, Any] = {}

    def compare(name: str, work: Any, concurrencies: list[int], nodes: list[int], shown: Any) -> None:
        found.update(name=name, work=work, concurrencies=concurrencies, nodes=nodes)

    monkeypatch.setattr(offline, "compare", compare)
    monkeypatch.setattr(command_line, "finish", lambda *of: None)
    result = CliRunner().invoke(app, ["bench", "sweep", "--output", str(folder), *given])
    assert result.exception is None, result.output
    return found


def test_what_is_given_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loads = ("--concurrency", "4", "--concurrency", "1", "--concurrency", "4")
    sizes = ("--nodes", "9", "--nodes", "2")
    small = ("--tokens", "8", "--rounds", "2", "--prompts-per-task", "1")
    found = asked(monkeypatch, tmp_path, *loads, *sizes, *small, "--", "--dtype", "float32")
    assert (found["name"], found["concurrencies"], found["nodes"]) == ("sweep", [1, 4], [2, 9])
    work = found["work"]
    assert (work.target, work.tokens, work.rounds, work.arguments) == (None, 8, 2, ["--dtype", "float32"])
    assert len(work.prompts) == 2


@pytest.mark.parametrize(
    ("given", "figures"),
    [
        ((), ([1, 4, 16], [8, 24], 96, 3, 24)),
        (("--quick",), ([1, 4], [8, 24], 40, 3, 6)),
        (("--config", 'own={"method": "ngram", "num_speculative_tokens": 2}'), ([1, 4, 16], [], 96, 3, 24)),
    ],
    ids=["nothing", "quick", "a configuration"],
)
def test_what_is_not_given_has_a_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], figures: tuple[Any, ...]
) -> None:
    found = asked(monkeypatch, tmp_path, *given)
    work = found["work"]
    assert (found["concurrencies"], found["nodes"], work.tokens, work.rounds, len(work.prompts)) == figures


def test_an_option_that_a_command_does_not_have_is_not_taken() -> None:
    @takes("rounds")
    def command(options: Options) -> None: ...

    small = typer.Typer()
    small.command()(command)
    result = CliRunner().invoke(small, ["--output", "x", "--nodes", "3"])
    assert result.exit_code == 2
    assert "--nodes" in result.output
