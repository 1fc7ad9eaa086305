"""Features that are there only while they are needed: what trains gets what it would get of kept ones."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.row import Row, make_row
from vllm_specext.training.generators import generator
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shards import pack, write_shard
from vllm_specext.training.step import Share
from vllm_specext.training.streaming.ring import Ring, TargetEndedError
from vllm_specext.training.streaming.streamed_rows import StreamedRows
from vllm_specext.training.streaming.supply import ROOM, Supply
from vllm_specext.training.streaming.visits import Visits

WIDTH, ROWS, TOKENS, BLOCK, STEPS = 8, 90, 64, 100, 60
LENGTHS = torch.randint(4, 40, (ROWS,), generator=generator(0)).tolist()


def row(number: int) -> Row:
    ids = torch.randint(0, 50, (LENGTHS[number],), generator=generator(1, number)).tolist()
    return make_row(ids, [number % 2 == 1] * len(ids), f"row-{number}")


def features(key: str) -> Tensor:
    number = int(key.partition("-")[2])
    return torch.randn(LENGTHS[number], WIDTH, generator=generator(2, number))


class Kept:
    """The same rows, all in memory."""

    def __init__(self, visits: Visits) -> None:
        self.lengths, self.order = visits.lengths, visits.order

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        found = [row(number) for number in rows]
        return [
            FeatureRow(torch.from_numpy(one.token_ids), torch.from_numpy(one.loss_mask).byte(), features(one.key))
            for one in found
        ]


class Target:
    """A target's process as a thread: it writes what it is asked for, in two files."""

    def __init__(self, folder: Path, processes: int = 1, lost: Sequence[str] = ()) -> None:
        self.ring, self.lost = Ring(folder / "ring"), lost
        self.rows = [row(number) for number in range(ROWS)]
        self.visits = Visits(LENGTHS, TOKENS, 0, BLOCK)
        self.supply = Supply(self.visits, self.rows, self.ring, self.write, processes, ahead=2)
        self.most_files = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.serve)

    def write(self, path: Path, rows: Sequence[Row]) -> list[str]:
        halves = [part for part in (rows[::2], rows[1::2]) if part]
        for number, part in enumerate(halves):
            wanted = [one for one in part if one.key not in self.lost]
            file = path.with_name(f"{path.stem}-{number}{path.suffix}")
            found = [
                FeatureRow(torch.from_numpy(one.token_ids), torch.from_numpy(one.loss_mask), features(one.key))
                for one in wanted
            ]
            write_shard(file, pack(found), [one.key for one in wanted], "target", "text")
        self.most_files = max(self.most_files, len(list(self.ring.folder.glob("*.safetensors"))))
        return [one.key for one in rows if one.key in self.lost]

    def serve(self) -> None:
        with self.ring.held():
            while not self.ended.is_set():
                if not self.supply.turn():
                    time.sleep(0.001)

    def source(self, process: int = 0) -> StreamedRows:
        return StreamedRows(self.visits, [one.key for one in self.rows], self.ring, process, "target")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Target]]:
    started: list[Target] = []

    def begin(processes: int = 1, lost: Sequence[str] = ()) -> Target:
        target = Target(tmp_path, processes, lost)
        target.thread.start()
        started.append(target)
        return target

    yield begin
    for target in started:
        target.ended.set()
        target.thread.join(10)


def taken(packs: PackedBatches, share: Share, count: int) -> list[Tensor]:
    return [packs.make(packs.take(share)).features for _ in range(count)]


def kept(visits: Visits, share: Share, size: int, count: int) -> list[Tensor]:
    return taken(PackedBatches(Kept(visits), TOKENS, size), share, count)


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_it_is_what_kept_features_would_be_and_the_disk_stays_small(start: Callable[..., Target]) -> None:
    target = start()
    found = taken(PackedBatches(target.source(), TOKENS, 1), Share(), STEPS)
    assert same(found, kept(target.visits, Share(), 1, STEPS))
    assert target.visits.epoch_of(STEPS) >= 1  # more than one epoch
    assert len(target.visits.blocks) > ROOM
    assert 2 * ROOM - 2 <= target.most_files <= 2 * (ROOM + 2)  # two files for each block


def test_two_processes_share_what_is_there(start: Callable[..., Target]) -> None:
    target = start(processes=2)
    found: dict[int, list[Tensor]] = {}

    def train(process: int) -> None:
        packs = PackedBatches(target.source(process), TOKENS, 2)
        found[process] = taken(packs, Share(process, 2), STEPS)

    trainings = [threading.Thread(target=train, args=(process,)) for process in range(2)]
    for one in trainings:
        one.start()
    for one in trainings:
        one.join(60)
    for process in range(2):
        assert same(found[process], kept(target.visits, Share(process, 2), 2, STEPS))


def test_a_training_goes_on_from_the_middle(start: Callable[..., Target]) -> None:
    target = start()
    packs = PackedBatches(target.source(), TOKENS, 1)
    packs.load_state_dict(packs.state_dict() | {"packs": 37})
    assert same(taken(packs, Share(), 10), kept(target.visits, Share(), 1, 47)[37:])


def test_a_row_that_has_no_states_is_named(start: Callable[..., Target]) -> None:
    target = start(lost=["row-33"])
    with pytest.raises(ConfigurationError, match=r"1 rows of --data have hidden states .* key row-33; expected"):
        taken(PackedBatches(target.source(), TOKENS, 1), Share(), STEPS)


def test_a_target_that_gives_up_says_why(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring")
    with ring.held():
        ring.refuse("the disk is full.")
    with pytest.raises(ConfigurationError, match=r"^the disk is full\.$"):
        ring.wait(0)


def test_a_target_that_died_is_not_waited_for(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring")
    with ring.held():
        ring.publish(0, [])
        assert ring.wait(0) == []
    assert ring.wait(0) == []  # that is there all the same
    with pytest.raises(TargetEndedError, match="has ended"):
        ring.wait(1)


def test_removing_one_visit_leaves_those_whose_numbers_begin_alike(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring")
    with ring.held():
        for visit in (1, 10, 11):
            ring.shard(visit).touch()
            ring.shard(visit).with_name(f"{visit}-1.safetensors").touch()
            ring.publish(visit, [])
        ring.remove(1)
        assert not list(ring.folder.glob("1.*"))
        assert [path.name for path in ring.wait(10)] == ["10-1.safetensors", "10.safetensors"]
        assert len(ring.wait(11)) == 2


def test_nothing_is_made_before_all_processes_have_begun(tmp_path: Path) -> None:
    target = Target(tmp_path, processes=2)
    with target.ring.held():
        target.ring.note(0, 0)
        assert not target.supply.turn()
        target.ring.note(1, 0)
        assert target.supply.turn()
