from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_specext.cli import app
from vllm_specext.cli import surroundings as module
from vllm_specext.cli.doctor import installation_problems
from vllm_specext.cli.surroundings import EMPTY, HIDDEN, environment, plugins, processor


def test_secrets_are_said_to_be_set_and_no_more() -> None:
    variables = {
        "VLLM_API_KEY": "sk-1",
        "HF_TOKEN": "hf_2",
        "RAY_REDIS_PASSWORD": "p3",
        "AWS_REGION": "anywhere",
        "VLLM_HOST_IP": "10.0.0.1",
        "HF_ENDPOINT": "https://user:p4@hub.example/path",
        "LD_PRELOAD": "libiomp5.so",
    }
    shown = environment(variables)
    assert shown == {
        "HF_ENDPOINT": "https://(not shown)@hub.example/path",
        "HF_TOKEN": HIDDEN,
        "LD_PRELOAD": "libiomp5.so",
        "RAY_REDIS_PASSWORD": HIDDEN,
        "VLLM_API_KEY": HIDDEN,
        "VLLM_HOST_IP": "10.0.0.1",
    }


def test_a_variable_that_is_set_to_nothing_is_said_to_be() -> None:
    assert environment({"CUDA_VISIBLE_DEVICES": ""}) == {"CUDA_VISIBLE_DEVICES": EMPTY}


def test_the_doctors_report_has_the_environment_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-very-secret")
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    output = CliRunner().invoke(app, ["doctor"]).output
    assert "VLLM_HOST_IP" in output
    assert "VLLM_API_KEY" in output
    assert "sk-very-secret" not in output
    assert "vllm_specext.plugin:register" in output
    assert processor() in output


def test_our_plug_in_is_found_and_a_setting_that_leaves_it_out_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert plugins()["vllm_specext"].startswith("vllm_specext.plugin:register, vllm-specext ")
    assert not any("VLLM_PLUGINS" in problem for problem in installation_problems())
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    assert any("VLLM_PLUGINS leaves out vllm_specext" in problem for problem in installation_problems())


def test_a_missing_plug_in_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.metadata, "entry_points", lambda group: [])
    assert any("does not find the plug-in" in problem for problem in installation_problems())


def test_the_processors_name_is_read_where_the_system_tells_it(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: A Processor 7000\nflags\t: x\nmodel name\t: A Processor 7000\n")
    assert processor(path) == "A Processor 7000"
    assert processor(tmp_path / "none")
