"""The kernels are a folder of the package like any other: mypy checks their calls, with the project's settings, in
which one override would make them ``Any``, and a checkout can import them."""

import subprocess
import sys
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from pkgutil import iter_modules

import pytest

from vllm_specext import kernels

ROOT = Path(__file__).parents[2]
NONSENSE = 'from vllm_specext.kernels.tree_layout import lay_out\nfound: int = lay_out("nonsense", 3)\n'


def dispatchers() -> list[tuple[str, str]]:
    """Module and name of every function that a kernel's folder offers."""
    folders = [f"{kernels.__name__}.{found.name}" for found in iter_modules(kernels.__path__) if found.ispkg]
    return [
        (folder, name)
        for folder in folders
        for name, value in vars(import_module(folder)).items()
        if isfunction(value) and value.__module__ == folder and not name.startswith("_")
    ]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of the nonsense and of each dispatcher, in turn. Without torch, whose annotations take it ten
    times as long: tensors are then ``Any`` in the signatures that are asked for."""
    folder = tmp_path_factory.mktemp("types")
    shown = [f"import {module}\nreveal_type({module}.{name})\n" for module, name in dispatchers()]
    (folder / "calls.py").write_text("".join([NONSENSE, *shown]))
    options = ["--config-file=pyproject.toml", "--no-site-packages", "--ignore-missing-imports"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, f"--cache-dir={folder / 'cache'}", str(folder / "calls.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "calls.py:" in line]


def test_a_nonsense_call_of_a_kernel_is_an_error(answers: list[str]) -> None:
    assert any('error: Missing positional arguments "seq_lens"' in line for line in answers), answers


def test_every_dispatcher_has_a_signature_that_mypy_knows(answers: list[str]) -> None:
    revealed = [line.partition('Revealed type is "')[2] for line in answers if "Revealed type" in line]
    assert len(revealed) == len(dispatchers()) > 7
    assert [asked for asked, found in zip(dispatchers(), revealed, strict=True) if not found.startswith("def (")] == []


def test_a_checkout_has_the_kernels_without_an_installation() -> None:
    """``-S`` leaves out all that is installed, and with it what points from there to a checkout."""
    shown = "from vllm_specext import kernels; print(kernels.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", shown], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert Path(done.stdout.strip()).parent == ROOT / "vllm_specext" / "kernels", done.stderr
