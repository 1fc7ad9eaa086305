"""A preparation whose groups overlap, killed anywhere and begun again: nothing is asked twice that was written, and the
rows and features are those of one that was not killed."""

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
import torch

from tests.unit.answerers import TinyTarget
from tests.unit.chat_templates import template
from tests.unit.test_data_prepare import chats, write
from tests.unit.test_feature_folder import KilledError, Now, contents
from vllm_specext.preparation.feature_folder import Capturing, FeatureFolder
from vllm_specext.preparation.spread import SpreadAnswerer
from vllm_specext.training.data.answers import Answer, Turn
from vllm_specext.training.data.prepare import prepare
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.settings import data_settings
from vllm_specext.training.data.turns import conversation_of
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shards import pack, write_shard

USED = template("chatml")
COUNT, GROUP = 12, 3


class Target(TinyTarget):
    """Answers one turn in every exchange, and lives for so many. The features of a row are its tokens."""

    def __init__(self, lives: int = 10_000) -> None:
        super().__init__(USED, at_a_time=1)
        self.lives = lives
        self.forgotten: set[str] = set()

    def exchange(self, turns: Sequence[Turn]) -> dict[str, Answer | None]:
        self.lives -= 1
        if self.lives < 0:
            raise KilledError
        return super().exchange(turns)

    def write(self, path: Path, rows: Sequence[Row], over: Collection[str], target: str, source: str) -> list[str]:
        assert {conversation_of(row.key) for row in rows} <= set(over)
        assert self.forgotten.isdisjoint(over)
        self.forgotten |= set(over) & {conversation_of(name) for name in self.said}
        made = [
            FeatureRow(torch.tensor(r.token_ids), torch.tensor(r.loss_mask), torch.tensor(r.token_ids)[:, None].float())
            for r in rows
        ]
        if made:
            write_shard(path, pack(made), [row.key for row in rows], target, source)
        return []


def prepared(capturing: Capturing, tmp_path: Path, name: str, group: int = GROUP) -> dict[str, list[int]]:
    data = write(tmp_path / "data.jsonl", chats(COUNT))
    settings = data_settings(data=(data,), conversations_at_once=5, group=group, max_new_tokens=20)
    folder = FeatureFolder(capturing, tmp_path / name / "features", "target", "data")
    prepare(settings, USED, tmp_path / name / "rows", folder, folder.keep)
    folder.end()
    return contents(tmp_path / name / "features")


@pytest.mark.parametrize("lives", [0, 1, 5, 9, 14, 18])
def test_what_was_written_is_not_asked_again(tmp_path: Path, lives: int) -> None:
    expected = prepared(Target(), tmp_path, "whole")
    with pytest.raises(KilledError):
        prepared(Target(lives), tmp_path, "killed")
    groups = len(list((tmp_path / "killed" / "features").glob("*.group.json")))
    assert groups < COUNT // GROUP
    target = Target()
    assert prepared(target, tmp_path, "killed") == expected
    assert len({conversation_of(name) for name in target.said}) == COUNT - groups * GROUP
    for part in ("train.parquet", "valid.parquet"):
        rows = [(tmp_path / name / "rows" / part).read_bytes() for name in ("whole", "killed")]
        assert rows[0] == rows[1]


def test_a_group_in_the_middle_is_asked_again_alone(tmp_path: Path) -> None:
    expected = prepared(Target(), tmp_path, "whole")
    (tmp_path / "whole" / "features" / "00001.group.json").write_text("{")
    target = Target()
    assert prepared(target, tmp_path, "whole") == expected
    assert len({conversation_of(name) for name in target.said}) == GROUP


@pytest.mark.parametrize("group", [2, 5])
def test_groups_of_another_size_have_the_answers_that_were_written(tmp_path: Path, group: int) -> None:
    expected = prepared(Target(), tmp_path, "whole", group=4)
    target = Target()
    assert prepared(target, tmp_path, "whole", group=group) == expected
    assert not target.said
    assert len(list((tmp_path / "whole" / "features").glob("*.group.json"))) == -(-COUNT // group)


@pytest.mark.parametrize("engines", [1, 2, 5])
def test_engines_that_answer_when_they_like_give_the_same(tmp_path: Path, engines: int) -> None:
    expected = prepared(Target(), tmp_path, "whole")
    targets = [Target() for _ in range(engines)]
    assert prepared(SpreadAnswerer([Now(target) for target in targets]), tmp_path, "spread") == expected
    conversations = [{conversation_of(name) for name in target.said} for target in targets]
    assert sum(map(len, conversations)) == len(set().union(*conversations)) == COUNT
    assert all(target.forgotten == own for target, own in zip(targets, conversations, strict=True))
