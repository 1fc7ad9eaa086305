"""The order in which rows of shards are read: all of them in every epoch, mixed in windows, the same whenever asked."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.unit.test_shards import made, one_sentence, write
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.shard_rows import ShardRows, find_shards

ROWS, SHARDS = 6, 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for number in range(SHARDS):
        first = number * ROWS
        rows = [made(1 + (first + row) % 5, first + row) for row in range(ROWS)]
        write(folder / f"{number:05d}.safetensors", rows, first_key=first)
    return folder


def reads(order: Sequence[int], window: int) -> list[set[int]]:
    """The shards that each window's rows are in."""
    size = window * ROWS
    return [{row // ROWS for row in order[first : first + size]} for first in range(0, len(order), size)]


def test_every_epoch_has_all_rows_in_another_order(folder: Path) -> None:
    source = ShardRows(find_shards(folder), seed=3)
    orders = [source.order(epoch) for epoch in range(4)]
    assert all(sorted(order) == list(range(ROWS * SHARDS)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert source.order(1) == orders[1]
    assert ShardRows(find_shards(folder), seed=3).order(2) == orders[2]
    assert ShardRows(find_shards(folder), seed=4).order(2) != orders[2]


def test_a_window_has_the_rows_of_four_shards_mixed(folder: Path) -> None:
    source = ShardRows(find_shards(folder), seed=0)
    for order in map(source.order, range(5)):
        windows = reads(order, 4)
        assert [len(shards) for shards in windows] == [4, 4, 2]
        assert set.union(*windows) == set(range(SHARDS))
        assert len({row // ROWS for row in order[: 2 * ROWS]}) > 2  # not one shard after the other
    assert len({tuple(sorted(reads(source.order(epoch), 4)[0])) for epoch in range(5)}) > 1


def test_rows_are_read_by_number_with_few_files_open(folder: Path) -> None:
    source = ShardRows(find_shards(folder), seed=0, window=2)
    for row in source.order(0):
        (found,) = source.read([row])
        expected = made(1 + row % 5, row)
        assert torch.equal(found.features, expected.features)
        assert len(found.token_ids) == source.lengths[row]
        assert len(source._files) <= 4


def test_a_training_that_goes_on_reads_the_rows_that_were_left(folder: Path) -> None:
    """A number of rows is all that has to be remembered."""
    source = ShardRows(find_shards(folder), seed=5)
    whole = [row for epoch in range(3) for row in source.order(epoch)]
    count = ROWS * SHARDS
    for taken in (0, 1, 17, count, 2 * count + 5):
        again = ShardRows(find_shards(folder), seed=5)
        epoch, place = divmod(taken, count)
        rest = [row for each in range(epoch, 3) for row in again.order(each)][place:]
        assert rest == whole[taken:]


def test_rows_may_be_asked_for_by_name(folder: Path) -> None:
    shards = find_shards(folder)
    keys = {"row-7", "row-8", "row-59", "unknown"}
    source = ShardRows(shards, seed=0, keys=keys)
    assert sorted(source.order(0)) == [0, 1, 2]
    assert source.lengths == [1 + row % 5 for row in (7, 8, 59)]
    assert torch.equal(source.read([2])[0].features, made(1 + 59 % 5, 59).features)
    with pytest.raises(ConfigurationError) as error:
        ShardRows(shards, seed=0, keys={"unknown"})
    one_sentence(error, "60 rows", "10 shards")
