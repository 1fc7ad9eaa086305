"""The folder of a run: one command at a time, stages that are done, other settings refused, a restart."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.pipeline.features_of import check_features_of, check_lender, check_taken_over, take_over
from vllm_specext.training.pipeline.folder import (
    CHECKED,
    DATA,
    DRAFTER,
    FEATURES,
    PLAN,
    STATE,
    begin,
    check_ours,
    check_same,
    check_unchanged,
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


HASHES = {"target": "a", "text": "b", "data": "c", "init": None}


@pytest.mark.parametrize(
    ("name", "made", "said"),
    [
        ("target", FEATURES, "the target has changed"),
        ("text", DATA, "the target's tokenizer or chat template has changed"),
        ("data", FEATURES, "files of --data have changed"),
        ("init", STATE, "the drafter of --init has changed"),
    ],
)
def test_what_was_made_is_not_lost_because_its_inputs_changed(name: str, made: str, said: str, tmp_path: Path) -> None:
    check_unchanged(tmp_path, HASHES)
    (tmp_path / PLAN).write_text(json.dumps({"hashes": HASHES}))
    other = HASHES | {name: "another"}
    check_unchanged(tmp_path, other)  # of which nothing was made
    (tmp_path / made).mkdir()
    check_unchanged(tmp_path, other)  # nor now
    (tmp_path / made / "0").touch()
    check_unchanged(tmp_path, HASHES)
    with pytest.raises(
        ConfigurationError, match=f"^{said} since .*; expected the same, another --output, or --restart"
    ):
        check_unchanged(tmp_path, other)


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


RESULTS = (f"{DATA}/stats.json", FEATURES)


def prepared(folder: Path, inputs: str) -> Path:
    """A run whose first stage is done."""
    (folder / DATA).mkdir(parents=True)
    (folder / FEATURES).mkdir()
    (folder / DATA / "stats.json").touch()
    (folder / PLAN).write_text(
        json.dumps({"settings": {"max_length": 64, "recipe": {"packs": 2}, "init": None, "stream": False}})
    )
    record_done(folder, "prepare", inputs, 7)
    return folder


def test_features_of_another_run_are_taken_over_and_outlive_a_restart(tmp_path: Path) -> None:
    other, own = prepared(tmp_path / "other", "a"), tmp_path / "own"
    own.mkdir()
    for _ in range(2):
        take_over(own, other, "a", RESULTS)
    assert is_done(own, "prepare", "a", RESULTS)
    assert (own / FEATURES).resolve() == other / FEATURES
    begin(own, "prepare", "a", (DATA, FEATURES))
    assert (own / FEATURES).is_symlink()
    restart(own)
    assert is_done(other, "prepare", "a", RESULTS)
    assert not (own / FEATURES).exists()


def test_features_of_other_inputs_are_not_taken_over(tmp_path: Path) -> None:
    other = prepared(tmp_path / "other", "a")
    with pytest.raises(ConfigurationError, match="whose features are not there, not complete, or of other files"):
        check_lender(tmp_path / "own", other, "b", RESULTS)
    check_lender(tmp_path / "own", other, "a", RESULTS)
    (tmp_path / FEATURES).mkdir()
    with pytest.raises(ConfigurationError, match="which has features of its own"):
        take_over(tmp_path, other, "a", RESULTS)


def test_a_run_does_not_lend_to_itself_before_a_restart_removes_its_features(tmp_path: Path) -> None:
    own, borrower = prepared(tmp_path / "own", "a"), tmp_path / "borrower"
    borrower.mkdir()
    take_over(borrower, own, "a", RESULTS)
    for other in (own, tmp_path / "borrower" / ".." / "own", borrower):
        with pytest.raises(ConfigurationError, match="whose features are those of --output"):
            check_lender(own, other, "a", RESULTS)


def test_features_that_were_taken_over_and_are_gone_or_made_anew_are_not_gone_on_with(tmp_path: Path) -> None:
    other, own = prepared(tmp_path / "other", "a"), tmp_path / "own"
    own.mkdir()
    take_over(own, other, "a", RESULTS)
    check_taken_over(own, "a", RESULTS)
    record_done(other, "prepare", "b", 1)
    with pytest.raises(
        ConfigurationError, match=r"has the features of .*other', which are not there any more, or were"
    ):
        check_taken_over(own, "a", RESULTS)
    shutil.rmtree(other)
    with pytest.raises(ConfigurationError, match="which are not there any more"):
        check_taken_over(own, "a", RESULTS)
    check_taken_over(tmp_path, "a", RESULTS)  # whose features are its own, or not there


def test_features_of_a_run_with_other_settings_than_the_recipes_are_refused(tmp_path: Path) -> None:
    other = prepared(tmp_path / "other", "a")
    same = {"max_length": 64, "recipe": {"packs": 4}, "init": "x", "stream": False}
    check_features_of(other, same)
    with pytest.raises(
        ConfigurationError, match="which was made with max_length 64, but max_length is 32 now; all but"
    ):
        check_features_of(other, {**same, "max_length": 32})
    with pytest.raises(ConfigurationError, match="cannot be combined with --stream"):
        check_features_of(other, {**same, "stream": True})
    with pytest.raises(ConfigurationError, match="which is not the folder of a run"):
        check_features_of(tmp_path, same)
