"""Trying a place for output says what is wrong with it, and leaves everything as it was."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_specext.cli.outputs import check_file, check_folder
from vllm_specext.errors import ConfigurationError


def refusal(check: Callable[[str, Path], None], path: Path) -> str:
    with pytest.raises(ConfigurationError) as raised:
        check("--output", path)
    message = str(raised.value)
    assert message.startswith(f"--output is {str(path)!r}, which cannot be written: ")
    return message


def test_a_folder_is_made_with_those_around_it_and_is_left_empty(tmp_path: Path) -> None:
    for _ in range(2):
        check_folder("--output", tmp_path / "a" / "b")
        assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_where_a_folder_must_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "it is a file" in refusal(check_folder, tmp_path / "file")
    refusal(check_folder, tmp_path / "file" / "below")
    refusal(check_folder, tmp_path / ("long" * 100))


def test_a_folder_in_which_nothing_can_be_made_is_refused() -> None:
    refusal(check_folder, Path("/proc"))
    refusal(check_folder, Path("/proc/results"))


def test_a_new_file_is_not_left_behind_and_an_old_one_not_changed(tmp_path: Path) -> None:
    check_file("--output", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").write_text("old")
    os.utime(tmp_path / "old", (1, 1))
    check_file("--output", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "old"
    assert (tmp_path / "old").stat().st_mtime == 1


def test_a_pipe_and_a_device_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a reader
    check_file("--output", tmp_path / "pipe")
    check_file("--output", Path("/dev/null"))


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "it is a folder" in refusal(check_file, tmp_path)
    assert f"there is no folder {str(tmp_path / 'gone')!r}" in refusal(check_file, tmp_path / "gone" / "file")
    refusal(check_file, tmp_path / "file" / "below")
    refusal(check_file, Path("/proc/results.json"))
    refusal(check_file, tmp_path / ("long" * 100))
