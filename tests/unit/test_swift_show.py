"""``vllm-specext swift FILE`` shows what was found, or says in a sentence why it cannot."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.test_swift_stored import FOUND, TARGET
from vllm_specext.cli import app, main
from vllm_specext.methods.swift.search.skip_set import SkipSet
from vllm_specext.methods.swift.search.stored import FoundSet, Target, write_found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_found(tmp_path / "set.json", FOUND)
    return tmp_path / "set.json"


def shown(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["swift", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def refusal(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["vllm-specext", "swift", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    message = str(ended.value)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def test_a_set_is_shown_layer_by_layer_with_where_it_is_from(path: Path) -> None:
    output = shown(path)
    assert "0-11" in output
    assert "#.##.##### .#" in output  # attention 1, 4, 10
    assert "##..###### ##" in output  # MLP 2, 3
    assert "5 of 24 sub-layers: attention 1 4 10; MLP 2-3" in output
    for fact in (TARGET.model, TARGET.architecture, "12 layers", "0.25", "0.600", "candidates tried │ 2"):
        assert fact in output


def test_a_deep_target_is_shown_in_rows_and_its_name_as_it_is_written(tmp_path: Path) -> None:
    target = Target("org/[bold]model", "LlamaForCausalLM", 50, 512, 4096)
    write_found(tmp_path / "set.json", FoundSet(target, SkipSet(50, (39, 40), ()), 0.45, None, 0))
    output = shown(tmp_path / "set.json")
    assert all(row in output for row in ("0-19", "20-39", "40-49", "org/[bold]model", "never measured"))
    assert f"{'#' * 10} {'#' * 9}." in output
    assert f".{'#' * 9}" in output


def test_the_picture_is_drawn_beside_it(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    assert "written to" in shown(path, "--output", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_bad_file_is_one_sentence(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing.json"
    assert refusal(monkeypatch, missing) == f"error: {missing} is no file."
    assert refusal(monkeypatch, tmp_path) == f"error: {tmp_path} is no file."
    path.write_text(json.dumps({**json.loads(path.read_text()), "layers": 2}))
    assert "set.json: layers is 2; expected an integer from 3" in refusal(monkeypatch, path)
    path.write_text("{")
    assert "is not a JSON file." in refusal(monkeypatch, path)


def test_a_picture_that_cannot_be_written_is_one_sentence(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    for name in ("picture.xyz", "missing/picture.png"):
        message = refusal(monkeypatch, path, "--output", tmp_path / name)
        assert f"--output is '{tmp_path / name}', which cannot be written: " in message
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_without_matplotlib_is_refused_with_what_to_install(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "vllm_specext.methods.swift.search.picture", raising=False)
    for name in ("matplotlib", "matplotlib.axes", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "vllm-specext[bench]" in refusal(monkeypatch, path, "--output", tmp_path / "picture.png")
