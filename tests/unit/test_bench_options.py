"""Which options each command of ``bench`` has, and what it makes of them."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from vllm_specext.bench import offline
from vllm_specext.cli import app
from vllm_specext.cli.bench_options import Options, takes
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure import arguments
from vllm_specext.measure.plain import SEEDED_ENVIRONMENT
from vllm_specext.measure.sampling import GREEDY, Sampling

command_line = import_module("vllm_specext.cli.bench")
COMMON = [
    "output",
    "target",
    "config",
    "eagle",
    "draft_model",
    "prompts",
    "prompts_per_task",
    "tokens",
    "temperature",
    "top_p",
    "quick",
    "arguments",
]


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
    monkeypatch.setattr(command_line, "measure", lambda work, options, run: run(None))
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


def test_temperatures_are_measured_from_the_lowest_on_and_plain_decoding_gets_our_runner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = ("--temperature", "1", "--temperature", "0", "--top-p", "0.9")
    work = asked(monkeypatch, tmp_path, *given)["work"]
    assert work.samplings == (Sampling(0.0), Sampling(1.0, 0.9))
    assert work.plain.environment == SEEDED_ENVIRONMENT
    assert [each.name for each in work.configurations if each.environment == SEEDED_ENVIRONMENT] == ["plain"]
    greedy = asked(monkeypatch, tmp_path)["work"]
    assert greedy.samplings == (GREEDY,)
    assert not greedy.plain.environment


def test_the_most_requests_at_a_time_make_room_in_the_bundled_engines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(arguments, "on_gpu", lambda: False)
    free = SimpleNamespace(available=8 << 30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    found = asked(monkeypatch, tmp_path, "--concurrency", "256", "--concurrency", "1")
    assert found["concurrencies"] == [1, 256]
    assert found["work"].at_once == 256
    own = arguments.compared_arguments(None, [], 256)
    assert "--max-num-seqs=256" in own
    assert f"--kv-cache-memory-bytes={(512 + 240 * 8) << 20}" in own
    assert {"--max-num-seqs=16", "--kv-cache-memory-bytes=536870912"} <= set(arguments.compared_arguments(None, []))
    free.available = 4 << 30
    result = CliRunner().invoke(app, ["bench", "sweep", "--output", str(tmp_path), "--concurrency", "256"])
    assert isinstance(result.exception, ConfigurationError)
    assert "--concurrency is 256, for which two engines need 4864 MiB" in str(result.exception)
    assert "4096 MiB of memory are free" in str(result.exception)


def test_more_requests_at_a_time_than_are_measured_are_not_taken(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "sweep", "--output", str(tmp_path), "--concurrency", "257"])
    assert result.exit_code == 2
    assert "equal to 256" in result.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--temperature", "-1"), "--temperature is -1, but must be from 0 to 2"),
        (("--temperature", "nan"), "--temperature is nan"),
        (("--temperature", "1", "--top-p", "0"), "--top-p is 0, but must be above 0 and at most 1"),
        (("--top-p", "0.9"), "--top-p is 0.9, which needs a --temperature above 0"),
    ],
)
def test_a_sampling_that_cannot_be_is_refused(given: tuple[str, ...], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "sweep", "--output", str(tmp_path), *given])
    assert isinstance(result.exception, ConfigurationError)
    assert said in str(result.exception)


def test_an_option_that_a_command_does_not_have_is_not_taken() -> None:
    @takes("rounds")
    def command(options: Options) -> None: ...

    small = typer.Typer()
    small.command()(command)
    result = CliRunner().invoke(small, ["--output", "x", "--nodes", "3"])
    assert result.exit_code == 2
    assert "--nodes" in result.output
