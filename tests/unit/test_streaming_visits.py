"""What a training needs, from when to when: against the packs that it really makes."""

from collections.abc import Sequence
from itertools import islice

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.streaming.visits import Visits, blocks_of

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=60)


class Asked:
    """A source that notes which rows are read for which pack."""

    def __init__(self, visits: Visits) -> None:
        self.visits, self.lengths = visits, visits.lengths
        self.packs: list[tuple[int, list[int]]] = []

    def order(self, epoch: int) -> list[int]:
        return self.visits.order(epoch)

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        self.packs.append((epoch, list(rows)))
        zeros = [torch.zeros(self.lengths[row], dtype=torch.int32) for row in rows]
        return [FeatureRow(each, each, each[:, None].float()) for each in zeros]


def packs_asked(visits: Visits, count: int) -> list[tuple[int, list[int]]]:
    source = Asked(visits)
    PackedBatches(source, visits.tokens, 1).make(range(count))
    return source.packs


def test_rows_lie_in_blocks_of_so_many_tokens() -> None:
    assert blocks_of([3, 3, 3, 9, 1], 6) == [range(2), range(2, 3), range(3, 4), range(4, 5)]


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.integers(0, 5))
def test_visits_are_what_a_training_reads(lengths: list[int], seed: int) -> None:
    visits = Visits(lengths, tokens=24, seed=seed, most=40)
    packs = packs_asked(visits, 30)
    needed = list(islice(visits.needed_from(0), 400))
    assert [visit.number for visit in needed] == list(range(400))
    assert sorted(needed, key=lambda visit: visit.first) == needed
    for number, (epoch, rows) in enumerate(packs):
        now = visits.epoch(epoch)
        for row in rows:
            visit = now.of_block[visits.block_of[row]]
            assert now.pack_of[row] == number
            assert visit.first <= number <= visit.last
            assert needed[visit.number] == visit
        assert visits.epoch_of(number) == epoch
    # No visit is longer than it has to be.
    read = {
        visits.epoch(epoch).of_block[visits.block_of[row]].number: number
        for number, (epoch, rows) in enumerate(packs)
        for row in rows
    }
    assert all(needed[visit].last == last for visit, last in read.items() if needed[visit].last < len(packs))


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.integers(0, 40))
def test_what_is_needed_later_is_the_same_from_the_middle(lengths: list[int], pack: int) -> None:
    visits = Visits(lengths, tokens=24, seed=1, most=40)
    everything = islice(visits.needed_from(0), 300)
    later = [visit for visit in everything if visit.last >= pack][:5]
    assert list(islice(Visits(lengths, tokens=24, seed=1, most=40).needed_from(pack), 5)) == later


def test_an_epoch_that_was_forgotten_is_found_again() -> None:
    visits = Visits([5] * 50, tokens=24, seed=0, most=20)
    first = visits.epoch(0)
    visits.epoch(7)
    assert visits.epoch(0) == first
    assert visits.epoch(7).visits[0].number == 7 * len(first.visits)
