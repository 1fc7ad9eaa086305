"""The folder of a run: one command at a time, stages that are done, other settings refused, a restart."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.pipeline.folder import (
    CHECKED,
    DATA,
    DRAFTER,
    PLAN,
    STATE,
    begin,
    check_ours,
    check_same,
    hash_of,
    is_done,
    locked,
    record_done,
    restart,
    write_json,
)

HOLD = "import sys, time; print('held', flush=True); sys.stdin.read()"


def test_two_commands_in_one_folder_are_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(ConfigurationError, match="in which another training is running"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_the_lock_is_held_as_long_as_a_process_of_the_run_lives(tmp_path: Path) -> None:
    with locked(tmp_path) as lock:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD], pass_fds=(lock,), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(ConfigurationError, match="another training is running"), locked(tmp_path):
        pass
    child.communicate(b"")
    with locked(tmp_path):
        pass


def test_a_stage_is_done_only_with_the_same_inputs_and_all_results(tmp_path: Path) -> None:
    results = ("model", "config")
    for name in results:
        (tmp_path / name).touch()
    assert not is_done(tmp_path, "train", "a", results)
    record_done(tmp_path, "train", "a", 1.5)
    record_done(tmp_path, "export", "b", 1)
    assert is_done(tmp_path, "train", "a", results)
    assert not is_done(tmp_path, "train", "b", results)
    assert not is_done(tmp_path, "check", "a", results)
    (tmp_path / "config").unlink()
    assert not is_done(tmp_path, "train", "a", results)


BEGUN: dict[str, Any] = {"max_length": 160, "licence": None, "recipe": {"packs": 4, "learning_rates": [0.1, 0.2]}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_length": 200}, "was begun with max_length 160, but max_length is 200 now"),
        ({"recipe": {"packs": 8, "learning_rates": [0.1, 0.2]}}, "with recipe.packs 4, but recipe.packs is 8 now"),
        ({"recipe": {"packs": 4, "learning_rates": (0.1, 0.3)}}, "with recipe.learning_rates [0.1, 0.2], but"),
    ],
)
def test_going_on_with_other_settings_is_refused_by_the_key(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    write_json(tmp_path / PLAN, {"settings": BEGUN})
    with pytest.raises(ConfigurationError) as refused:
        check_same(tmp_path, BEGUN | changes)
    assert expected in str(refused.value)


def test_the_same_settings_and_what_may_change_go_on(tmp_path: Path) -> None:
    check_same(tmp_path, BEGUN)
    write_json(tmp_path / PLAN, {"settings": BEGUN})
    check_same(tmp_path, BEGUN | {"licence": "MIT"})


def test_a_restart_removes_what_a_run_wrote_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / DATA).mkdir()
    (tmp_path / DATA / "train.parquet").touch()
    (tmp_path / CHECKED).mkdir()
    (tmp_path / "mine.txt").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / DRAFTER).symlink_to(elsewhere)
    restart(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "mine.txt"]


def test_a_stage_begun_with_other_inputs_loses_what_it_left_and_with_the_same_keeps_it(tmp_path: Path) -> None:
    begin(tmp_path, "train", "a", (STATE,))
    (tmp_path / STATE).mkdir()
    begin(tmp_path, "prepare", "b", (DATA,))
    begin(tmp_path, "train", "a", (STATE,))
    assert (tmp_path / STATE).exists()
    begin(tmp_path, "train", "c", (STATE,))
    assert not (tmp_path / STATE).exists()


def test_a_folder_with_other_things_and_a_file_are_refused(tmp_path: Path) -> None:
    check_ours(tmp_path / "new")
    check_ours(tmp_path)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ConfigurationError, match=r"which has files but no plan\.json"):
        check_ours(tmp_path)
    with pytest.raises(ConfigurationError, match="which is a file; expected a folder"):
        check_ours(tmp_path / "mine.txt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="cannot be written: Permission denied"), locked(tmp_path):
        pass


def test_hashes_do_not_depend_on_the_order_of_keys() -> None:
    assert hash_of({"a": 1, "b": [2]}) == hash_of({"b": [2], "a": 1}) != hash_of({"a": 1, "b": [3]})
