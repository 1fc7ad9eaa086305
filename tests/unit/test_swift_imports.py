"""What SWIFT's search is free of: vLLM and the engine, and, but for two files, torch."""

import subprocess
import sys
from pkgutil import iter_modules

import pytest

from vllm_specext.methods.swift import search

FILES = {f"{search.__name__}.{module.name}" for module in iter_modules(search.__path__)}
WITH_TENSORS = {f"{search.__name__}.{name}" for name in ("agreement", "window")}


def loaded_by(files: set[str]) -> set[str]:
    """The modules vllm, vllm_specext.engine and torch, as far as a process has them after importing ``files``."""
    program = f"import sys, {', '.join(sorted(files))}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return {"vllm", "vllm_specext.engine", "torch"} & set(done.stdout.split())


def test_the_search_imports_no_engine() -> None:
    assert len(FILES) == 11
    assert loaded_by(FILES) == {"torch"}


def test_all_but_two_files_of_the_search_import_no_torch() -> None:
    assert loaded_by(FILES - WITH_TENSORS) == set()


@pytest.mark.parametrize("file", sorted(WITH_TENSORS))
def test_those_two_do(file: str) -> None:
    assert loaded_by({file}) == {"torch"}


def test_an_import_of_the_engine_is_noticed() -> None:
    engine = {"vllm", "vllm_specext.engine.verification.rank_check"}
    assert loaded_by(engine) == {"vllm", "vllm_specext.engine", "torch"}
