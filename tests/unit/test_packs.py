"""Which rows are in which pack, and in which order packs come."""

from collections.abc import Sequence

import pytest
import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.packs import PackedBatches, pack_order
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.step import Share


class Source:
    """Row ``n`` has the token ``n + 1`` alone."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(epoch)
        return torch.randperm(len(self.lengths), generator=generator).tolist()

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        ids = [torch.full((self.lengths[row],), row + 1) for row in rows]
        return [FeatureRow(x, torch.ones_like(x), x[:, None].float()) for x in ids]


def lengths(count: int = 60) -> list[int]:
    return torch.randint(1, 30, (count,), generator=torch.Generator().manual_seed(0)).tolist()


def test_every_row_is_in_one_pack_and_packs_are_nearly_full() -> None:
    rows = lengths(400)
    packs = pack_order(rows, Source(rows).order(0), 64)
    assert sorted(row for pack in packs for row in pack) == list(range(400))
    used = [sum(rows[row] for row in pack) for pack in packs]
    assert max(used) <= 64
    assert sum(used) > 0.9 * 64 * len(packs)


def taken(share: Share, batches: int, size: int = 4, state: dict | None = None) -> list[list[list[int]]]:
    made = PackedBatches(Source(lengths()), 48, size)
    if state is not None:
        made.load_state_dict(state)
    found = [made.make(made.take(share)) for _ in range(batches)]
    assert [batch.token_ids.shape for batch in found] == [(size // share.processes, 48)] * batches
    return [batch.token_ids.tolist() for batch in found]


def test_processes_share_the_packs_that_one_has_alone() -> None:
    alone = taken(Share(), 9)
    shares = [taken(Share(process, 2), 9) for process in range(2)]
    assert [first + second for first, second in zip(*shares, strict=True)] == alone
    assert alone[0] != alone[1]


def test_all_rows_come_once_before_any_comes_again() -> None:
    """In an order of each epoch's own, without regard to where batches end."""
    source = Source(lengths())
    packs = [pack for batch in taken(Share(), 20) for pack in batch]
    for epoch in range(2):
        count = len(pack_order(source.lengths, source.order(epoch), 48))
        tokens = sorted(token for pack in packs[:count] for token in pack if token)
        assert tokens == sorted(row + 1 for row, length in enumerate(source.lengths) for _ in range(length))
        packs = packs[count:]
    assert len(packs) > 4


def test_a_place_is_all_that_is_needed_to_go_on() -> None:
    made = PackedBatches(Source(lengths()), 48, 4)
    for _ in range(7):
        made.make(made.take(Share()))
    following = taken(Share(), 12)[7:]
    assert taken(Share(), 5, state=made.state_dict()) == following
    two_by_two = taken(Share(), 10, size=2, state=made.state_dict())
    assert [pack for batch in two_by_two for pack in batch] == [pack for batch in following for pack in batch]


def test_rows_of_a_pack_have_positions_of_their_own() -> None:
    batch = PackedBatches(Source([20, 13, 9]), 48, 1).make([0])
    rows = [batch.token_ids[0, start].item() for start in batch.layout.begins[0]]
    assert sorted(rows) == [0, 1, 2, 3]
    for start, number in zip(batch.layout.begins[0], rows, strict=True):
        length = [6, 20, 13, 9][number]
        assert batch.layout.positions[0, start : start + length].tolist() == list(range(length))
        assert batch.loss_mask[0, start : start + length].tolist() == [number > 0] * length
        assert batch.lengths[0, start].item() == (length if number else 1)


def test_what_cannot_be_packed_or_shared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="longest row has 20 tokens, but a pack has 19"):
        PackedBatches(Source([20, 3]), 19, 1)
    with pytest.raises(ConfigurationError, match="a batch has 4 entries, which 3 processes cannot share"):
        taken(Share(0, 3), 1)
    state = PackedBatches(Source(lengths()), 40, 4).state_dict()
    with pytest.raises(ConfigurationError, match="has tokens 40, but tokens is 48 now"):
        taken(Share(), 1, state=state)
