"""Draft trees that are verified or drafted as attention sees them: the inputs that all implementations are given.

Keys and values lie as on a GPU of vLLM's, in scattered pages ``[pages, page size, Hkv, 2 D]``; implementations that
know no pages get the same numbers side by side.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from benchmarks.gpu_suite.timing import DEVICE
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.tree.topology import Topology, unpack


@dataclass(frozen=True)
class Shape:
    requests: int
    context: int
    nodes: int
    """Without the root."""
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    page_size: int = 16
    frontier: int = 0
    """Of a level that is drafted: the rows are so many of the last nodes. A tree that is verified has all for rows."""

    @property
    def rows(self) -> int:
        """Of one request."""
        return self.frontier or self.nodes + 1

    @property
    def slots(self) -> int:
        """Of one request, its nodes and their root included."""
        return self.context + self.nodes + 1

    @property
    def pages(self) -> int:
        """Of one request."""
        return -(-self.slots // self.page_size)


class Problem:
    def __init__(self, shape: Shape, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> None:
        self.shape = shape
        random = torch.Generator().manual_seed(shape.context + shape.requests + seed)
        sizes = (shape.requests * shape.pages, shape.page_size, shape.kv_heads, 2 * shape.head_size)
        self.cache = torch.empty(sizes, dtype=dtype, device=DEVICE).normal_()
        keys, values = self.cache.transpose(1, 2).chunk(2, dim=-1)
        self.keys, self.values = keys, values
        """``[pages, Hkv, page size, D]``."""
        table = torch.randperm(sizes[0], generator=random).view(shape.requests, shape.pages)
        self.table = table.to(DEVICE, torch.int32)
        rows = shape.requests * shape.rows
        self.query = torch.empty(rows, shape.heads, shape.head_size, dtype=dtype, device=DEVICE).normal_()
        self.out = torch.empty_like(self.query)
        self.scale = shape.head_size**-0.5
        topology = random_trees(shape.requests, shape.nodes, random)
        starts = torch.arange(0, rows + 1, shape.rows, dtype=torch.int32, device=DEVICE)
        self.rows = TreeRows(
            block_table=self.table,
            query_start_loc=starts,
            prefix_lens=torch.full((shape.requests,), shape.context, dtype=torch.int32, device=DEVICE),
            visible=topology.ancestors[:, -shape.rows :].to(DEVICE),
            num_rows=rows,
            max_query_len=shape.rows,
            num_nodes=shape.nodes + 1,
            max_seq_len=shape.slots,
        )

    @cached_property
    def dense(self) -> tuple[Tensor, Tensor]:
        """Keys and values ``[R, Hkv, S, D]``."""
        of_request = self.cache[self.table.long()].flatten(1, 2)[:, : self.shape.slots].transpose(1, 2)
        keys, values = (half.contiguous() for half in of_request.chunk(2, dim=-1))
        return keys, values

    @cached_property
    def padded_query(self) -> Tensor:
        """``[R, Hq, Q, D]``."""
        return self.query.unflatten(0, (self.shape.requests, -1)).transpose(1, 2).contiguous()

    @cached_property
    def mask(self) -> Tensor:
        """``[R, Q, S]`` bool."""
        in_tree = unpack(self.rows.visible, self.shape.nodes + 1)
        prefix = in_tree.new_ones(*in_tree.shape[:2], self.shape.context)
        return torch.cat((prefix, in_tree), dim=2)


def random_trees(requests: int, nodes: int, random: torch.Generator) -> Topology:
    """Every node's parent is any node before it."""
    parents = torch.zeros(requests, nodes + 1, dtype=torch.int64)
    depths = torch.zeros_like(parents)
    for node in range(1, nodes + 1):
        parents[:, node] = torch.randint(node, (requests,), generator=random)
        depths[:, node] = depths.gather(1, parents[:, node, None])[:, 0] + 1
    return Topology.of(parents, depths, int(depths.max()))
