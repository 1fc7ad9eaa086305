"""The library of the bodies in C++: compiled once, kept for this user alone, and done without where that fails."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_specext.kernels.native import compiler, library
from vllm_specext.kernels.native.compiler import CompilationError, compiled

FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo "fake 1.0"; exit 0; fi
echo compiled >> "{log}"
while [ "$1" != -o ]; do shift; done
{does}
"""
Compiler = Callable[[str], Path]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Puts a compiler in place that does this for ``-o FILE``, ``$2``; returns a file with a line for each run."""
    log = tmp_path / "log"
    log.touch()

    def put(does: str = 'echo library > "$2"') -> Path:
        script = tmp_path / "fake-c++"
        script.write_text(FAKE.format(log=log, does=does))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return log

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return put


def runs(log: Path) -> int:
    return log.read_text().count("compiled")


def load_it() -> Path:
    found: list[Path] = []
    compiled(found.append)
    assert found[0].read_bytes().startswith(b"library")
    return found[0]


def test_the_second_process_finds_what_the_first_compiled(fake: Compiler) -> None:
    log = fake()
    path = load_it()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert load_it() == path
    assert runs(log) == 1


@pytest.mark.parametrize("harm", ["damage", "open"])
def test_a_file_that_may_not_be_what_was_compiled_is_compiled_again(fake: Compiler, harm: str) -> None:
    log = fake()
    path = load_it()
    if harm == "damage":
        path.write_bytes(b"libraries" + path.read_bytes()[9:])
    else:
        path.chmod(0o666)
    load_it()
    assert runs(log) == 2


def test_a_file_that_cannot_be_loaded_is_compiled_again(fake: Compiler) -> None:
    log = fake()
    load_it()
    tries: list[Path] = []

    def load(path: Path) -> None:
        tries.append(path)
        if len(tries) == 1:
            raise OSError

    compiled(load)
    assert len(tries) == runs(log) == 2


def test_other_flags_make_another_file(fake: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    fake()
    path = load_it()
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-g"))
    assert load_it() != path


def test_a_cache_that_others_may_write_to_is_not_used(fake: Compiler, tmp_path: Path) -> None:
    log = fake()
    folder = tmp_path / "cache" / "vllm-specext"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert not load_private().exists()
    assert list(folder.iterdir()) == []
    assert runs(log) == 1


def load_private() -> Path:
    found: list[Path] = []
    compiled(found.append)
    return found[0]


@pytest.mark.parametrize(
    ("does", "says"),
    [("echo 'x.cpp:1: error: no' >&2; exit 3", "fails with status 3 x.cpp:1: error: no"), ("exit 0", "status 0")],
)
def test_a_compiler_that_fails_is_named(fake: Compiler, does: str, says: str) -> None:
    fake(does)
    with pytest.raises(CompilationError, match=says):
        compiled(lambda path: None)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("VLLM_SPECEXT_NATIVE", "0", "switched off by VLLM_SPECEXT_NATIVE"),
        ("CXX", "no-such-compiler", "there is no C++ compiler (no-such-compiler)"),
    ],
)
def test_without_a_library_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    library.load.cache_clear()
    try:
        found = library.load()
        assert isinstance(found, str)
        assert says in found
        assert library.library() is None
    finally:
        library.load.cache_clear()
