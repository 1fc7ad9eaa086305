"""Passes over tree nodes in a drafter's own cache, as CUDA graphs where they were captured.

A chain is a tree too: a text's next tokens are nodes that see those before them.
Shapes: ``R`` requests, ``q`` rows of each.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from vllm.v1.attention.backends.utils import PAD_SLOT_ID

from vllm_specext.engine.own_cache import OwnCache
from vllm_specext.engine.pass_graphs import PassGraphs
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.tree.topology import pack

Run = Callable[[Tensor, Tensor, dict[str, Any], dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Kind:
    """What is the same in all passes that a graph is for."""

    rows: int
    """Of each request."""
    nodes: int
    """That the rows' bits name."""


SINGLE = Kind(1, 1)
"""The token behind a text."""


@dataclass(frozen=True)
class Nodes:
    ids: Tensor
    positions: Tensor
    slots: Tensor
    """``[R, q]``, counted within the request, like ``ids`` and ``positions``."""
    written: Tensor
    """``[R, q]`` bool: rows whose keys and values are kept."""
    prefix_lens: Tensor
    """``[R]``"""
    visible: Tensor
    """``[R, q, words]``: bits of the slots behind the prefix that a row sees."""

    @classmethod
    def of(cls, requests: int, kind: Kind, device: torch.device) -> "Nodes":
        """To be filled."""
        rows = (requests, kind.rows)
        ids, positions, slots = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3))
        written = torch.zeros(rows, dtype=torch.bool, device=device)
        visible = pack(torch.ones(*rows, kind.nodes, dtype=torch.bool, device=device))
        return cls(ids, positions, slots, written, torch.zeros(requests, dtype=torch.int64, device=device), visible)

    def part(self, requests: slice) -> "Nodes":
        return Nodes(*(tensor[requests] for tensor in vars(self).values()))

    def take(self, given: "Nodes", size: int) -> None:
        """Those ``given``; behind them, up to ``size`` requests, nothing is written and no prefix read."""
        requests = len(given.ids)
        for own, tensor in zip(vars(self).values(), vars(given).values(), strict=True):
            own[:requests] = tensor
        self.written[requests:size] = False
        self.prefix_lens[requests:size] = 0


class NodePasses:
    def __init__(self, cache: OwnCache, run: Run, most_rows: int) -> None:
        """``run`` gives the drafter's hidden states for ids and positions ``[T]``, given attention metadata and slots
        by layer; a pass has at most ``most_rows`` rows."""
        self._cache, self._run, self._most_rows = cache, run, most_rows
        self._inputs: dict[Kind, Nodes] = {}
        # Not kept alive from here: vLLM measures the memory of graphs, drops them and makes others.
        self._graphs: Callable[[], PassGraphs[Tensor] | None] = lambda: None

    def capture(self, graphs: PassGraphs[Tensor], kinds: Iterable[Kind]) -> None:
        """Have passes of these ``kinds`` run in graphs, as long as somebody keeps ``graphs``."""
        most, longest = graphs.sizes[-1], self._cache.max_len
        table = self._cache.block_table(most).zero_()
        self._inputs = {kind: Nodes.of(most, kind, table.device) for kind in kinds}
        self._graphs = ref(graphs)
        graphs.capture_passes(
            {
                (size, kind): partial(self._pass, inputs.part(slice(size)), table[:size], kind.nodes, longest)
                for size in reversed(graphs.sizes)
                for kind, inputs in self._inputs.items()
                if size * kind.rows <= self._most_rows
            }
        )

    def replays(self, kind: Kind, requests: int) -> bool:
        """Whether such passes run in a graph."""
        graphs = self._graphs()
        return graphs is not None and graphs.holds((graphs.size_for(requests), kind))

    def __call__(self, given: Nodes, num_nodes: int, longest: int) -> Tensor:
        """Hidden states ``[R q, d]``, which the next pass may overwrite; ``longest`` text with its nodes."""
        requests, q = given.ids.shape
        kind, graphs = Kind(q, num_nodes), self._graphs()
        size = None if graphs is None else graphs.size_for(requests)
        if graphs is not None and size is not None and graphs.holds((size, kind)):
            self._inputs[kind].take(given, size)
            return graphs.replay((size, kind))[: requests * q]
        table, most = self._cache.block_table(requests), max(self._most_rows // q, 1)
        parts = [slice(first, first + most) for first in range(0, requests, most)]
        made = [self._pass(given.part(part), table[part], num_nodes, longest) for part in parts]
        return torch.cat(made) if len(made) > 1 else made[0]

    def _pass(self, given: Nodes, table: Tensor, num_nodes: int, longest: int) -> Tensor:
        requests, q = given.ids.shape
        rows = TreeRows(
            block_table=table,
            query_start_loc=torch.arange(0, requests * q + 1, q, dtype=torch.int32, device=table.device),
            prefix_lens=given.prefix_lens,
            visible=given.visible,
            num_rows=requests * q,
            max_query_len=q,
            num_nodes=num_nodes,
            max_seq_len=min(longest, self._cache.max_len),
        )
        names = self._cache.layer_names
        mapping = torch.where(given.written, self._cache.pages_of(given.slots, table), PAD_SLOT_ID).flatten()
        positions = given.positions.flatten().clamp(max=self._cache.max_len - 1)
        return self._run(given.ids.flatten(), positions, dict.fromkeys(names, rows), dict.fromkeys(names, mapping))
