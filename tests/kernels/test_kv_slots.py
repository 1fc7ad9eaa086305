"""Where rows go in a paged cache, against a plain loop.

Every test here runs in torch and in C++, with the Triton kernel on a GPU, and with it under Triton's interpreter
(``cases/case_kv_slots.py``).
"""

from collections.abc import Callable

import pytest
import torch
from bodies import BODIES, choose, fill_new_memory
from torch import Tensor

from vllm_specext.kernels import kv_slots as dispatch
from vllm_specext.kernels.kv_slots import NOWHERE

KVSlots = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
PAGES = 100


@pytest.fixture(params=BODIES)
def kv_slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KVSlots:
    """Of tensors on the CPU, wherever it runs."""
    choose(request.param, monkeypatch)
    if request.param != "GPU":
        fill_new_memory(monkeypatch)
        return dispatch.kv_slots
    return lambda table, slots, written, *others: dispatch.kv_slots(
        table.cuda(), slots.cuda(), written.cuda(), *others
    ).cpu()


def expected(table: Tensor, slots: Tensor, written: Tensor, page_size: int, limit: int) -> list[int]:
    return [
        int(table[request, slot // page_size]) * page_size + slot % page_size if keeps and slot < limit else NOWHERE
        for request, (row, kept) in enumerate(zip(slots.tolist(), written.expand_as(slots).tolist(), strict=True))
        for slot, keeps in zip(row, kept, strict=True)
    ]


def check(kv_slots: KVSlots, table: Tensor, slots: Tensor, written: Tensor, page_size: int, limit: int) -> None:
    found = kv_slots(table, slots, written, page_size, limit)
    assert found.dtype == torch.int64
    assert found.tolist() == expected(table, slots, written, page_size, limit)


@pytest.mark.parametrize("page_size", [1, 16, 48])
@pytest.mark.parametrize(("requests", "rows"), [(1, 1), (3, 10), (2, 7), (1, 300)])
def test_slots_are_those_of_a_loop(kv_slots: KVSlots, requests: int, rows: int, page_size: int) -> None:
    random = torch.Generator().manual_seed(rows)
    blocks = 5
    table = torch.randint(PAGES, (requests, blocks), generator=random, dtype=torch.int32)
    slots = torch.randint(2 * blocks * page_size, (requests, rows), generator=random)
    written = torch.rand(requests, rows, generator=random) < 0.7
    for limit in (blocks * page_size, blocks * page_size - 1, 1):
        check(kv_slots, table, slots, written, page_size, limit)


def test_a_request_is_written_whole_or_not_at_all(kv_slots: KVSlots) -> None:
    table = torch.arange(6, dtype=torch.int32).view(3, 2)
    slots = torch.arange(3)[:, None] + torch.arange(4)
    check(kv_slots, table, slots, torch.tensor([[True], [False], [True]]), 4, 8)


def test_tensors_may_be_parts_of_others(kv_slots: KVSlots) -> None:
    random = torch.Generator().manual_seed(3)
    table = torch.randint(PAGES, (5, 9), generator=random, dtype=torch.int32)[1:4, :6]
    slots = torch.randint(24, (7, 3), generator=random).T[:, ::2]
    written = (torch.rand(4, 3, generator=random) < 0.5).T
    check(kv_slots, table, slots, written, 4, 24)
    check(kv_slots, table[:1], slots[:1], torch.ones(1, 1, dtype=torch.bool), 4, 24)


def test_another_page_is_another_slot(kv_slots: KVSlots) -> None:
    table, slots, written = torch.tensor([[3, 7]]).int(), torch.tensor([[0, 5]]), torch.ones(1, 2, dtype=torch.bool)
    assert kv_slots(table, slots, written, 4, 8).tolist() == [12, 29]
    assert kv_slots(table.flip(1), slots, written, 4, 8).tolist() == [28, 13]
