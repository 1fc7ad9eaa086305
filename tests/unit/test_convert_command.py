"""``vllm-specext convert`` as it is called: what it writes to, and what it leaves alone."""

import json
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.unit import eagle_folders as eagle
from tests.unit.conversions import CHECKPOINTS, command, refusal
from tests.unit.test_griffin_from_eagle import Code
from vllm_specext.cli import app
from vllm_specext.convert.kinds import TAKES, Format, To
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.served_drafter import of_folder

GRIFFIN, EAGLE3 = MODELS / "griffin", MODELS / "eagle3"
DOCUMENTED = """
vllm-specext convert vllm_specext/demo/models/griffin named --to speculators --target vllm_specext/demo/models/target
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "250")
    return CliRunner()


def test_the_documented_command_makes_a_drafter_that_names_its_target(
    run: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm_specext").symlink_to(MODELS.parents[1])
    monkeypatch.chdir(tmp_path)
    done = run.invoke(app, shlex.split(DOCUMENTED)[1:])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "vllm serve named"
    served = of_folder("named", None)
    assert served is not None
    assert (served.target, served.speculative["method"]) == (str(TARGET.resolve()), "griffin")


@pytest.mark.parametrize("name", ["new", "empty"])
def test_the_output_is_a_new_or_an_empty_folder(name: str, run: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    source = eagle.write(tmp_path / "eagle", *CHECKPOINTS[Format.EAGLE])
    assert run.invoke(app, command(source, tmp_path / name, "--to", "griffin")).exit_code == 0


def test_a_folder_with_anything_in_it_is_left_alone(run: CliRunner, tmp_path: Path) -> None:
    source = eagle.write(tmp_path / "eagle", *CHECKPOINTS[Format.EAGLE])
    before = sorted(source.iterdir())
    done = run.invoke(app, command(source, source, "--to", "griffin"))
    assert str(done.exception) == f"DST is {str(source)!r}, which is not empty; it has to be a new or empty folder."
    assert sorted(source.iterdir()) == before


def test_a_file_in_the_place_of_the_output_is_refused(run: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run.invoke(app, command(GRIFFIN, tmp_path / "file", "--to", "griffin"))
    assert "cannot be written: it is a file" in str(done.exception)
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_is_made_for_a_checkpoint_that_is_refused(run: CliRunner, tmp_path: Path) -> None:
    done = run.invoke(app, command(EAGLE3, tmp_path / "new", "--to", "griffin"))
    assert isinstance(done.exception, ConfigurationError)
    assert not (tmp_path / "new").exists()


def test_a_disk_that_is_full_leaves_no_half_of_a_checkpoint(
    run: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    done = run.invoke(app, command(GRIFFIN, tmp_path / "new", "--to", "griffin"))
    assert "No space left on device" in str(done.exception)
    assert isinstance(done.exception, ConfigurationError)
    assert list((tmp_path / "new").iterdir()) == []


def test_tensors_that_share_memory_are_written_apart(run: CliRunner, tmp_path: Path) -> None:
    config, tensors = CHECKPOINTS[Format.EAGLE]
    shared = torch.randn(20, 16).half()
    source = tmp_path / "eagle"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    names = [f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")]
    torch.save(tensors | dict.fromkeys(names, shared), source / "pytorch_model.bin")
    assert run.invoke(app, command(source, tmp_path / "new", "--to", "griffin")).exit_code == 0
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert all(torch.equal(found[name], shared) for name in names)


def test_speculators_needs_a_target_before_anything_is_read(tmp_path: Path) -> None:
    assert "--target is missing" in refusal(tmp_path / "gone", To.SPECULATORS)


@pytest.mark.parametrize("to", To)
def test_a_missing_source_and_a_missing_target_are_named(to: To, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert f"SRC is {str(gone)!r}, which is neither a directory nor a hub id" in refusal(gone, to, str(TARGET))
    source = eagle.write(tmp_path / "drafter", *CHECKPOINTS[TAKES[to][0]])
    assert f"--target is {str(gone)!r}, which is neither" in refusal(source, to, str(gone))


@pytest.mark.parametrize("to", To)
def test_code_in_a_pickle_is_not_run(to: To, tmp_path: Path) -> None:
    source = eagle.write(tmp_path / "drafter", *CHECKPOINTS[TAKES[to][0]])
    (source / "model.safetensors").unlink()
    torch.save({"fc.weight": Code(tmp_path / "trap")}, source / "pytorch_model.bin")
    assert "other than tensors, which is not loaded" in refusal(source, to, str(TARGET))
    (source / "pytorch_model.bin").write_bytes(pickle.dumps(Code(tmp_path / "trap"), protocol=2))
    assert "other than tensors, which is not loaded" in refusal(source, to, str(TARGET))
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("to", To)
def test_cut_files_and_damaged_json_are_named(to: To, tmp_path: Path) -> None:
    source = eagle.write(tmp_path / "drafter", *CHECKPOINTS[TAKES[to][0]])
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert f"{weights} is truncated or damaged" in refusal(source, to, str(TARGET))
    (source / "config.json").write_text("{")
    assert f"{source / 'config.json'} is not valid JSON" in refusal(source, to, str(TARGET))


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    source = eagle.write(tmp_path / "drafter", *CHECKPOINTS[Format.EAGLE3])
    save_file({"fc.weight": torch.zeros(16, 48)}, source / "more.safetensors")
    assert "tensor fc.weight is in model.safetensors and more.safetensors" in refusal(
        source, To.SPECULATORS, str(TARGET)
    )


def test_the_command_loads_neither_vllm_nor_speculators(tmp_path: Path) -> None:
    program = (
        "import sys; from vllm_specext.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "print({'vllm', 'speculators', 'transformers'} & sys.modules.keys())"
    )
    words = command(GRIFFIN, tmp_path / "new", "--to", "speculators", "--target", TARGET)
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
