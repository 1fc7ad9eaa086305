"""Draft passes on a CPU that are recorded at their first use."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from vllm_specext.engine.drafting.recorded_passes import MOST, RecordedPasses

KIND = "level"


class Counting:
    """A pass that counts up, and so must not run twice for one draft."""

    def __init__(self) -> None:
        self.count = torch.zeros(4, dtype=torch.int64)
        self.runs = 0

    def run(self, requests: int) -> Tensor:
        self.runs += 1
        self.count[:requests] += 1
        return self.count[:requests] * 10

    def of(self, requests: int) -> Callable[[], Tensor]:
        return lambda: self.run(requests)

    def mask(self, first: int, end: int) -> None:
        self.count[first:end] = -100


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """What a pass is run in."""
    with torch.inference_mode():
        yield


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def passes() -> RecordedPasses:
    return RecordedPasses(max_num_reqs=4)


def test_the_first_use_is_the_pass_and_later_ones_are_replays(passes: RecordedPasses, counting: Counting) -> None:
    passes.capture_passes({(size, KIND): counting.of(size) for size in (1, 2)})
    assert counting.runs == 0
    assert [passes.replay(2, KIND).tolist() for _ in range(3)] == [[10, 10], [20, 20], [30, 30]]
    assert counting.runs == 1
    assert passes.replay(1, KIND).tolist() == [40]
    assert counting.runs == 2


def test_a_pass_is_run_for_as_many_requests_as_there_are(passes: RecordedPasses, counting: Counting) -> None:
    passes.offer(3, KIND, counting.of(3))
    assert passes.size_for(3, KIND) == 3
    assert passes.size_for(2, KIND) is None
    assert passes.size_for(3, "other") is None


def test_many_requests_are_not_recorded(counting: Counting) -> None:
    passes = RecordedPasses(max_num_reqs=256)
    assert list(passes.sizes) == list(range(1, MOST + 1))
    passes.offer(MOST + 1, KIND, counting.of(1))
    assert passes.size_for(MOST + 1, KIND) is None


def test_a_pass_that_is_prepared_finds_padding(passes: RecordedPasses, counting: Counting) -> None:
    passes.offer(2, KIND, counting.of(2))
    for _ in range(2):
        passes.prepare(2, KIND, counting.mask)
        assert counting.runs == 1
        assert counting.count.tolist() == [-99, -99, 0, 0]
    counting.count.fill_(5)
    assert passes.replay(2, KIND).tolist() == [60, 60]


def test_pieces_are_left_out_of_a_prepared_pass(passes: RecordedPasses) -> None:
    stream = torch.zeros(1)

    def run() -> Tensor:
        stream.fill_(1)
        passes.cut("middle")
        stream.add_(10)
        passes.cut("end")
        return stream * 2

    passes.offer(1, KIND, run)
    with pytest.raises(AssertionError, match="recorded whole"):
        passes.replay(1, KIND, without={"middle"})
    passes.prepare(1, KIND)
    assert passes.replay(1, KIND, without={"middle"}).tolist() == [2]
    assert passes.replay(1, KIND).tolist() == [22]
    passes.cut("nothing is recorded now")


def test_a_pass_that_waits_is_an_error(passes: RecordedPasses) -> None:
    x = torch.zeros(1)
    passes.offer(1, KIND, lambda: x * x.item())
    with pytest.raises(RuntimeError, match="Python sees its result"):
        passes.replay(1, KIND)
