"""What is checked of a launch before vLLM is loaded, and what is left to vLLM."""

import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from pydantic import AfterValidator, TypeAdapter, ValidationError

from vllm_specext.cli.launch import check, read_options, target_of
from vllm_specext.errors import ConfigurationError
from vllm_specext.vllm_process import users_error

HOST = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server((HOST, 0)) as server:
        yield str(server.getsockname()[1])


def test_options_are_read_as_vllm_spells_them_and_the_last_counts() -> None:
    given = ["model", "--port", "1", "--speculative_config={}", "--port=2", "-sc", "[]", "--enforce-eager"]
    found = read_options(given)
    assert (found["--port"], found["--speculative-config"], found["-sc"]) == ("2", "{}", "[]")
    assert "--enforce-eager" not in found


def test_the_model_is_the_first_argument_or_named() -> None:
    assert target_of(["model", "--port", "1"]) == "model"
    assert target_of(["--port=1", "--model", "model"]) == "model"
    assert target_of(["--port", "1", "model"]) is None
    assert target_of([]) is None


@pytest.mark.parametrize("spelling", ["--speculative-config", "--speculative_config", "-sc"])
def test_a_bad_configuration_is_refused_however_the_option_is_spelled(spelling: str) -> None:
    for arguments in ([spelling, "5"], [f"{spelling}=5"]):
        with pytest.raises(ConfigurationError, match="--speculative-config is 5"):
            check(arguments)


@pytest.mark.parametrize(
    "config", ["", "None", "null", "{}", '{"method": "ngram"}', '{"model": "a/b/c"}', '{"method": "grifin", "x": 1}']
)
def test_no_configuration_and_those_of_others_are_left_to_vllm(config: str) -> None:
    check(["org/model", f"--speculative-config={config}", "--config", "launch.yaml"])


def test_dashes_in_keys_are_read_as_vllm_reads_them() -> None:
    with pytest.raises(ConfigurationError, match="'tree_depth' is 0"):
        check(['--speculative-config={"method": "griffin", "model": "a/b", "tree-depth": 0}'])


@pytest.mark.parametrize("name", ["x" * 5000 + "/y", "~nobody-of-this-name/drafter", "a\0b"])
def test_a_drafters_or_targets_name_that_no_path_can_have_is_a_sentence_too(name: str) -> None:
    with pytest.raises(ConfigurationError, match="'model' is"):
        check([f"/{name}", f'--speculative-config={{"method": "moa", "model": "/{name}"}}'.replace("\0", "\\u0000")])
    with pytest.raises(ConfigurationError, match="does not exist"):
        check([f"./{name}"])


@pytest.mark.parametrize("arguments", [["model"], ["org/model"], ["s3://bucket/model"], ["--model", "org/model"], []])
def test_a_model_that_may_be_anywhere_is_left_to_vllm(arguments: list[str]) -> None:
    check(arguments)


def test_a_target_that_is_a_file_or_has_no_config_json_is_left_to_vllm(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    check([str(tmp_path)])
    check([str(tmp_path / "model.gguf")])


@pytest.mark.parametrize("port", ["-1", "65536", "99999999", "x", ""])
def test_a_port_that_cannot_be_is_refused(port: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--port is '{port}', but must be a number from 0 to 65535"):
        check(["model", "--port", port])


def test_a_taken_port_is_refused_where_the_server_would_listen_on_it(taken: str) -> None:
    for host in ([], ["--host", HOST]):
        with pytest.raises(ConfigurationError, match=rf"cannot listen on .*--port {taken}: Address already in use"):
            check(["model", "--port", taken, *host])
    for elsewhere in ("--uds=socket", "--headless", "--data-parallel-rank=1"):
        check(["model", "--port", taken, elsewhere])
    check(["model", "--port", "0"])
    check(["model"])


def test_the_demonstration_says_that_its_port_is_taken_before_it_starts_a_server(taken: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_specext", "demo", "--serve", "--port", taken],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"--port {taken}: Address already in use" in done.stderr


def test_what_the_hub_and_the_port_say_while_vllm_starts_is_the_users() -> None:
    in_use = users_error(OSError(errno.EADDRINUSE, "Address already in use"))
    assert str(in_use) == "the server cannot listen: Address already in use; --port chooses another port."
    for kind in (HFValidationError, LocalEntryNotFoundError):
        outer = OSError("cannot load")
        outer.__cause__ = kind("what the hub says. And more.")
        assert f"'a/b' is no folder that is there, and cannot be fetched from the hub ({kind.__name__})." == str(
            users_error(outer, "'a/b'")
        )
    assert users_error(OSError(errno.EIO, "a broken disk")) is None


def test_what_vllm_says_of_a_value_is_one_line() -> None:
    def refuse(value: int) -> int:
        raise ValueError("not\n  this one")

    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Annotated[int, AfterValidator(refuse)]).validate_python(1)
    assert str(users_error(raised.value)) == "not this one"
