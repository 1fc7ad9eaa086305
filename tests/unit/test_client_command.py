"""The commands of clients that draft, before a server is asked."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_specext.cli import app
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.remote.device.socket import address


@pytest.mark.parametrize(
    ("server", "insecure", "expected"),
    [
        ("wss://host", False, "wss://host/v1/specext/drafts"),
        ("wss://host:8443/", False, "wss://host:8443/v1/specext/drafts"),
        ("ws://127.0.0.1:8000", False, "ws://127.0.0.1:8000/v1/specext/drafts"),
        ("ws://[::1]:8000", False, "ws://[::1]:8000/v1/specext/drafts"),
        ("ws://localhost:8000", False, "ws://localhost:8000/v1/specext/drafts"),
        ("ws://host", True, "ws://host/v1/specext/drafts"),
    ],
)
def test_addresses(server: str, insecure: bool, expected: str) -> None:
    assert address(server, insecure) == expected


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ("ws://host", "would send the text in the clear: use wss://, or --insecure"),
        ("ws://127.0.0.1.host", "would send the text in the clear"),
        ("http://host", "expected ws://HOST:PORT or wss://HOST:PORT"),
        ("host:8000", "expected ws://HOST:PORT or wss://HOST:PORT"),
    ],
)
def test_an_address_that_would_not_do_is_refused(server: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        address(server, insecure=False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either a PROMPT or --serve HOST:PORT."),
        (["a", "--serve", "127.0.0.1:1"], "give either a PROMPT or --serve HOST:PORT."),
        (["a", "--server", "ws://elsewhere"], "would send the text in the clear"),
        (["a"], "is no bundle: it has no bundle.json."),
    ],
)
def test_what_the_client_is_told_wrong_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    place = ["--server", "ws://127.0.0.1:9", "--bundle", str(tmp_path)]
    done = CliRunner().invoke(app, ["client", *place, *arguments])
    assert isinstance(done.exception, ConfigurationError)
    assert sentence in str(done.exception)


def test_a_bundle_is_not_written_over_other_files(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = CliRunner().invoke(app, ["bundle", str(TARGET), str(MODELS / "moa"), str(tmp_path)])
    assert str(done.exception).endswith("it has to be a new or empty folder.")
