"""Passes over tree nodes: split where they are too wide, and padded for a graph without leaving anything over."""

from typing import Any

import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from torch import Tensor
from vllm.v1.attention.backends.utils import PAD_SLOT_ID

from vllm_specext.engine.drafting.node_passes import CacheGroup, NodePasses, Nodes, in_order
from vllm_specext.engine.standalone.captured_passes import CapturedPasses, PassKind, buffers, fill
from vllm_specext.kernels.kv_slots import NOWHERE
from vllm_specext.kernels.tree_attention import TreeRows, tree_attention
from vllm_specext.tree.topology import pack

DEVICE = torch.device("cpu")
BLOCKS, PAGE = 4, 16


MAX_LEN = BLOCKS * PAGE


class Drafter:
    """Its hidden states are the numbers that a row was given."""

    def __init__(self) -> None:
        self.widths: list[int] = []

    def __call__(self, nodes: Nodes, metadata: Any, slots: Any) -> Tensor:
        rows, ids, positions = metadata["layer"], nodes.ids.flatten(), nodes.positions.flatten()
        assert rows.num_rows == len(ids) == len(positions) == len(slots["layer"])
        assert rows.query_start_loc.diff().unique().tolist() == [rows.max_query_len]
        self.widths.append(len(ids))
        prefix_lens = rows.prefix_lens.repeat_interleave(rows.max_query_len)
        first_page = rows.block_table[:, 0].repeat_interleave(rows.max_query_len)
        seen = rows.visible.flatten(0, 1)[:, 0]
        return torch.stack((ids, positions, slots["layer"], prefix_lens, first_page, seen), dim=1)


def passes(drafter: Drafter, max_rows: int, requests: int) -> CapturedPasses:
    table = torch.arange(requests * BLOCKS, dtype=torch.int32).view(requests, BLOCKS)
    made = NodePasses(drafter, MAX_LEN)
    made.groups = [CacheGroup(["layer"], PAGE, table)]
    return CapturedPasses(made, max_rows)


def some_nodes(requests: int, kind: PassKind) -> Nodes:
    nodes = buffers(requests, kind, DEVICE)
    shape = nodes.ids.shape
    generator = torch.Generator().manual_seed(requests)
    return Nodes(
        ids=torch.randint(100, shape, generator=generator),
        positions=torch.randint(MAX_LEN, shape, generator=generator),
        slots=torch.randint(MAX_LEN, shape, generator=generator),
        written=torch.rand(shape, generator=generator) < 0.5,
        prefix_lens=torch.randint(MAX_LEN, (requests,), generator=generator),
        visible=torch.randint_like(nodes.visible, 2**kind.nodes, generator=generator),
    )


@pytest.mark.parametrize(("most_rows", "widths"), [(28, [28]), (27, [24, 4]), (8, [8, 8, 8, 4]), (3, [4] * 7)])
def test_a_pass_with_too_many_rows_is_split_between_requests(most_rows: int, widths: list[int]) -> None:
    given = some_nodes(7, PassKind(4, 8))
    whole = passes(Drafter(), 1000, 7)(given, 8, 50)
    drafter = Drafter()
    made = passes(drafter, most_rows, 7)(given, 8, 50)
    assert drafter.widths == widths
    assert torch.equal(made, whole)


def test_requests_that_a_graph_has_too_many_of_write_nothing() -> None:
    kind = PassKind(3, 3)
    own = buffers(8, kind, DEVICE)
    fill(own, some_nodes(8, kind), 8)
    given = some_nodes(3, kind)
    fill(own, given, 4)
    for name, tensor in vars(given).items():
        if name == "features":
            continue
        assert torch.equal(getattr(own, name)[:3], tensor), name
    assert not own.written[3].any()
    assert own.prefix_lens[3] == 0


def test_slots_that_the_block_table_has_not_are_not_written() -> None:
    """vLLM may shorten the context to what fits into memory, once the drafter knows a longer one."""
    made = NodePasses(Drafter(), 2 * MAX_LEN)
    made.groups = [CacheGroup(["layer"], PAGE, torch.arange(BLOCKS, dtype=torch.int32).view(1, BLOCKS))]
    slots = torch.tensor([[MAX_LEN - 1, MAX_LEN, 2 * MAX_LEN - 1]])
    given = Nodes(
        ids=slots,
        positions=slots,
        slots=slots,
        written=torch.ones_like(slots, dtype=torch.bool),
        prefix_lens=torch.zeros(1, dtype=torch.int32),
        visible=torch.ones(1, 3, 1, dtype=torch.int32),
    )
    assert made(given, 3, 2 * MAX_LEN)[:, 2].tolist() == [MAX_LEN - 1, PAD_SLOT_ID, PAD_SLOT_ID]


def test_what_is_kept_nowhere_is_vllms_padding() -> None:
    assert NOWHERE == PAD_SLOT_ID


@pytest.mark.parametrize("respects_ends", [True, False])
def test_what_others_left_in_the_slots_of_rows_that_do_not_count_reaches_no_row(respects_ends: bool) -> None:
    """No row reads them, so that no implementation of attention has to keep them from the others. The control does."""
    prefix, width, ends = 5, 4, torch.tensor([1, 3, 0])
    requests, pages = len(ends), torch.randn(3, 1, PAGE, 2 * 32)
    for request, end in enumerate(ends.tolist()):
        pages[request, :, prefix + end + 1 :] = torch.nan
    causal = pack(torch.ones(width, width, dtype=torch.bool).tril())
    rows = TreeRows(
        block_table=torch.arange(requests, dtype=torch.int32)[:, None],
        query_start_loc=torch.arange(0, requests * width + 1, width, dtype=torch.int32),
        prefix_lens=torch.full((requests,), prefix),
        visible=in_order(causal, ends if respects_ends else torch.full_like(ends, width - 1)),
        num_rows=requests * width,
        max_query_len=width,
        num_nodes=width,
        max_seq_len=PAGE,
    )
    query = torch.randn(requests * width, 1, 32)
    keys, values = pages.chunk(2, dim=-1)
    out = torch.empty_like(query)
    tree_attention(query, keys, values, rows, out, scale=1.0)
    of_request = out.view(requests, width, -1)
    if not respects_ends:
        assert of_request[0, -1].isnan().any()
        return
    for request, end in enumerate(ends.tolist()):
        for row in range(width):
            seen = prefix + min(row, end) + 1
            key, value = keys[request, 0, :seen], values[request, 0, :seen]
            expected = torch.softmax(query[request * width + row, 0] @ key.T, dim=0) @ value
            torch.testing.assert_close(of_request[request, row], expected)
