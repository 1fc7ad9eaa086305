"""Passes over tree nodes: split where they are too wide, and padded for a graph without leaving anything behind."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_specext.engine.node_passes import Kind, NodePasses, Nodes

DEVICE = torch.device("cpu")
BLOCKS, PAGE = 4, 16


class Cache:
    layer_names = ("layer",)
    max_len = BLOCKS * PAGE

    def block_table(self, requests: int) -> Tensor:
        return torch.arange(requests * BLOCKS, dtype=torch.int32).view(requests, BLOCKS)

    def pages_of(self, slots: Tensor, table: Tensor) -> Tensor:
        return table.gather(1, slots // PAGE).long() * PAGE + slots % PAGE


class Drafter:
    """Its hidden states are the numbers that a row was given."""

    def __init__(self) -> None:
        self.widths: list[int] = []

    def __call__(self, ids: Tensor, positions: Tensor, metadata: dict[str, Any], slots: dict[str, Tensor]) -> Tensor:
        rows = metadata["layer"]
        assert rows.num_rows == len(ids) == len(positions) == len(slots["layer"])
        assert rows.query_start_loc.diff().unique().tolist() == [rows.max_query_len]
        self.widths.append(len(ids))
        prefix_lens = rows.prefix_lens.repeat_interleave(rows.max_query_len)
        first_page = rows.block_table[:, 0].repeat_interleave(rows.max_query_len)
        seen = rows.visible.flatten(0, 1)[:, 0]
        return torch.stack((ids, positions, slots["layer"], prefix_lens, first_page, seen), dim=1)


def some_nodes(requests: int, kind: Kind) -> Nodes:
    nodes = Nodes.of(requests, kind, DEVICE)
    shape = nodes.ids.shape
    generator = torch.Generator().manual_seed(requests)
    return Nodes(
        ids=torch.randint(100, shape, generator=generator),
        positions=torch.randint(Cache.max_len, shape, generator=generator),
        slots=torch.randint(Cache.max_len, shape, generator=generator),
        written=torch.rand(shape, generator=generator) < 0.5,
        prefix_lens=torch.randint(Cache.max_len, (requests,), generator=generator),
        visible=torch.randint_like(nodes.visible, 2**kind.nodes, generator=generator),
    )


@pytest.mark.parametrize(("most_rows", "widths"), [(28, [28]), (27, [24, 4]), (8, [8, 8, 8, 4]), (3, [4] * 7)])
def test_a_pass_with_too_many_rows_is_split_between_requests(most_rows: int, widths: list[int]) -> None:
    given = some_nodes(7, Kind(4, 8))
    whole = NodePasses(Cache(), Drafter(), 1000)(given, 8, 50)  # type: ignore[arg-type]
    drafter = Drafter()
    made = NodePasses(Cache(), drafter, most_rows)(given, 8, 50)  # type: ignore[arg-type]
    assert drafter.widths == widths
    assert torch.equal(made, whole)


def test_requests_that_a_graph_has_too_many_of_write_nothing() -> None:
    kind = Kind(3, 3)
    own = Nodes.of(8, kind, DEVICE)
    own.take(some_nodes(8, kind), 8)
    given = some_nodes(3, kind)
    own.take(given, 4)
    for name, tensor in vars(given).items():
        assert torch.equal(getattr(own, name)[:3], tensor), name
    assert not own.written[3].any()
    assert own.prefix_lens[3] == 0
