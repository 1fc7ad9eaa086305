"""Groups of conversations become shards once, whatever is killed, and on any number of engines."""

import json
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.asking import ask
from vllm_specext.errors import ConfigurationError
from vllm_specext.preparation.feature_folder import Capturing, FeatureFolder
from vllm_specext.preparation.spread import SpreadAnswerer
from vllm_specext.target_stages.answers_only import AnswersOnly
from vllm_specext.training.data.answers import Answer, Turn
from vllm_specext.training.data.row import Row, make_row
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shard_rows import ShardRows, find_shards
from vllm_specext.training.shards import pack, write_shard

GROUPS = ("a", "b", "c")
CONVERSATIONS = 5


class KilledError(Exception):
    pass


class FakeEngine:
    """Answers with the prompt's sum. The features of a row are its tokens; ``lost`` has keys of rows without any."""

    def __init__(self, lives: int = 1000, lost: Sequence[str] = ()) -> None:
        self.lives, self.lost = lives, lost
        self.asked: list[str] = []
        self.forgotten: list[str] = []
        self.written: list[str] = []

    def exchange(self, turns: Sequence[Turn]) -> dict[str, Answer | None]:
        self.lives -= 1
        if self.lives < 0:
            raise KilledError
        self.asked += [turn.name for turn in turns]
        return {turn.name: Answer((sum(turn.prompt_token_ids) % 1000, 2), ended=True) for turn in turns}

    def abandon(self) -> None:
        self.asked.append("abandoned")

    def write(self, path: Path, rows: Sequence[Row], over: Collection[str], target: str, source: str) -> list[str]:
        self.forgotten += over
        kept = [row for row in rows if row.key not in self.lost]
        features = [torch.tensor(row.token_ids)[:, None].float() for row in kept]
        made = [
            FeatureRow(torch.tensor(row.token_ids), torch.tensor(row.loss_mask), own)
            for row, own in zip(kept, features, strict=True)
        ]
        if made:
            write_shard(path, pack(made), [row.key for row in kept], target, source)
        self.written.append(path.name)
        return [row.key for row in rows if row.key in self.lost]


def prepare(folder: FeatureFolder) -> list[Row]:
    """Two turns of each conversation of all groups, and a row of given text in each group."""
    all_rows = []
    for group in GROUPS:
        rows = []
        texts = {f"{group}{number}": (number + 1, ord(group)) for number in range(CONVERSATIONS)}
        for turn in range(2):
            turns = [Turn(f"{key}-{turn}", turn, ids, len(ids) - 2 if turn else 0, 2) for key, ids in texts.items()]
            for (key, ids), answer in zip(list(texts.items()), ask(folder, turns), strict=True):
                assert answer is not None
                texts[key] = (*ids, *answer.token_ids)
        rows = [make_row(ids, [False] * 2 + [True] * 4, f"{key}-1") for key, ids in texts.items()]
        rows.append(make_row([7, 8, ord(group)], [True] * 3, f"{group}-given-0"))
        folder.keep(rows, texts)
        all_rows += rows
    return all_rows


def begun(capturing: Capturing, path: Path, source: str = "data") -> FeatureFolder:
    return FeatureFolder(capturing, path, "target", source)


def contents(path: Path) -> dict[str, list[int]]:
    shards = find_shards(path, "target")
    source = ShardRows(shards, seed=0)
    keys = [key for shard in shards for key in shard.keys]
    rows = source.read(range(len(keys)))
    assert all(torch.equal(row.features[:, 0].int(), row.token_ids) for row in rows)
    return {key: row.token_ids.tolist() for key, row in zip(keys, rows, strict=True)}


def test_a_group_is_a_shard_with_the_rows_that_were_kept(tmp_path: Path) -> None:
    engine = FakeEngine()
    rows = prepare(begun(engine, tmp_path))
    assert engine.written == ["00000.safetensors", "00001.safetensors", "00002.safetensors"]
    assert contents(tmp_path) == {row.key: row.token_ids.tolist() for row in rows}


@pytest.mark.parametrize("lives", [0, 1, 2, 3, 4, 5])
def test_what_was_killed_goes_on_where_it_was(tmp_path: Path, lives: int) -> None:
    whole = {row.key: row.token_ids.tolist() for row in prepare(begun(FakeEngine(), tmp_path / "whole"))}
    with pytest.raises(KilledError):
        prepare(begun(FakeEngine(lives), tmp_path / "killed"))
    engine = FakeEngine()
    prepare(begun(engine, tmp_path / "killed"))
    groups_left = len(GROUPS) - lives // 2
    assert len(engine.asked) == groups_left * 2 * CONVERSATIONS
    assert len(engine.written) == groups_left
    assert contents(tmp_path / "killed") == whole


def test_what_is_there_is_not_done_again_unless_it_is_damaged(tmp_path: Path) -> None:
    prepare(begun(FakeEngine(), tmp_path))
    before = contents(tmp_path)
    (tmp_path / "00001.group.json").write_text("{")
    engine = FakeEngine()
    prepare(begun(engine, tmp_path))
    assert engine.written == ["00001.safetensors"]
    assert {name[0] for name in engine.asked} == {"b"}
    assert contents(tmp_path) == before


def test_a_shard_that_was_deleted_is_made_again_of_the_same_answers(tmp_path: Path) -> None:
    prepare(begun(FakeEngine(), tmp_path))
    before = contents(tmp_path)
    (tmp_path / "00002.safetensors").unlink()
    engine = FakeEngine()
    prepare(begun(engine, tmp_path))
    assert (engine.asked, engine.written) == ([], ["00002.safetensors"])
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"^the features cannot be written to '.*file' \(File exists\)\.$"):
        begun(FakeEngine(), tmp_path / "file")


def test_groups_that_an_earlier_start_has_left_are_removed_at_the_end(tmp_path: Path) -> None:
    """Groups are larger on more GPUs, so that there are fewer of them than an earlier start has written."""
    prepare(begun(FakeEngine(), tmp_path))
    (tmp_path / "00002.safetensors").rename(tmp_path / "00002-1.safetensors")
    (tmp_path / "held-out.safetensors").touch()
    folder = begun(FakeEngine(), tmp_path)
    folder.number = 2
    folder.end()
    left = {path.name for path in tmp_path.iterdir()}
    assert {name for name in left if name.startswith("00002")} == set()
    assert {"00000.safetensors", "00001.safetensors", "00001.group.json", "held-out.safetensors"} <= left


def test_a_row_that_was_not_there_is_added(tmp_path: Path) -> None:
    prepare(begun(FakeEngine(), tmp_path))
    group = json.loads((tmp_path / "00000.group.json").read_text())
    group["keys"].pop()
    (tmp_path / "00000.group.json").write_text(json.dumps(group))
    engine = FakeEngine()
    prepare(begun(engine, tmp_path))
    assert (engine.asked, engine.written) == ([], ["00000.safetensors"])


@pytest.mark.parametrize(("target", "source"), [("target", "other data"), ("another", "data")])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, target: str, source: str) -> None:
    prepare(begun(FakeEngine(), tmp_path))
    with pytest.raises(ConfigurationError, match=r"^.*features of other data, settings or another target.*\.$"):
        FeatureFolder(FakeEngine(), tmp_path, target, source)


def test_rows_without_features_are_named_now_and_after_a_restart(tmp_path: Path) -> None:
    lost = ["a0-1", "b-given-0"]
    for engine in (FakeEngine(lost=lost), FakeEngine()):
        folder = begun(engine, tmp_path)
        prepare(folder)
        assert folder.missing == lost
        assert contents(tmp_path).keys().isdisjoint(lost)


class Now:
    """A ``RemoteEngine`` that is not far."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def submit(self, method: str, *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(self.engine, method)(*arguments))
        except KilledError as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("engines", [1, 2, 3, 7])
def test_any_number_of_engines_writes_the_same_rows(tmp_path: Path, engines: int) -> None:
    whole = prepare(begun(FakeEngine(), tmp_path / "one"))
    fakes = [FakeEngine(lost=["b0-1"] if engines == 3 else []) for _ in range(engines)]
    folder = begun(SpreadAnswerer([Now(fake) for fake in fakes]), tmp_path / "spread")
    rows = prepare(folder)
    assert all(np.array_equal(one.token_ids, other.token_ids) for one, other in zip(rows, whole, strict=True))
    found = contents(tmp_path / "spread")
    assert found == {row.key: row.token_ids.tolist() for row in whole if row.key not in folder.missing}
    assert folder.missing == (["b0-1"] if engines == 3 else [])
    for fake in fakes:  # all turns of a conversation in one place, and about as many in each
        own = {name.rpartition("-")[0] for name in fake.asked}
        assert sorted(fake.asked) == sorted(f"{key}-{turn}" for key in own for turn in range(2))
        assert len(own) <= len(GROUPS) * -(-CONVERSATIONS // engines)
        assert len(fake.written) == len(GROUPS)


def test_an_engine_that_ends_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        prepare(begun(SpreadAnswerer([Now(FakeEngine()), Now(FakeEngine(1))]), tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_answers_alone_have_no_shards_and_are_asked_for_once(tmp_path: Path) -> None:
    killed = FakeEngine(lives=3)
    with pytest.raises(KilledError):
        prepare(FeatureFolder(AnswersOnly(killed), tmp_path, "target", "source"))
    engine = FakeEngine()
    rows = prepare(FeatureFolder(AnswersOnly(engine), tmp_path, "target", "source"))
    assert len(rows) == len(GROUPS) * (CONVERSATIONS + 1)
    assert not list(tmp_path.glob("*.safetensors"))
    # The first group was done, and the states of every later one are let go.
    assert not [name for name in engine.asked if name.startswith(GROUPS[0])]
    assert len(engine.written) == len(GROUPS) - 1
