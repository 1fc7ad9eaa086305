"""Passes of a standalone drafter over tree nodes, in graphs where they were captured.

Shapes: ``R`` requests, ``q`` rows of each, ``d`` hidden size.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from weakref import ref

import torch
from torch import Tensor

from vllm_specext.engine.drafting.graphs import Graphs
from vllm_specext.engine.drafting.node_passes import NodePasses, Nodes
from vllm_specext.engine.drafting.request_parts import request_parts
from vllm_specext.tree.topology import pack


@dataclass(frozen=True)
class PassKind:
    """Passes that one graph serves for a number of requests."""

    rows: int
    """Rows of each request, ``q``."""
    nodes: int
    """Nodes that the rows' bits name."""


SINGLE = PassKind(1, 1)
"""A pass over the one token after a text."""


def buffers(requests: int, kind: PassKind, device: torch.device) -> Nodes:
    """Nodes of a pass, to be filled."""
    rows = requests, kind.rows
    ids, positions, slots = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3))
    written = torch.zeros(rows, dtype=torch.bool, device=device)
    visible = pack(torch.ones(*rows, kind.nodes, dtype=torch.bool, device=device))
    return Nodes(ids, positions, slots, written, torch.zeros(requests, dtype=torch.int64, device=device), visible)


def part(nodes: Nodes, requests: slice) -> Nodes:
    """The same of some ``requests``."""
    given = (getattr(nodes, field.name) for field in fields(nodes))
    return Nodes(*(None if tensor is None else tensor[requests] for tensor in given))  # type: ignore[arg-type]


def fill(own: Nodes, given: Nodes, size: int) -> None:
    """Copy the nodes ``given`` into the buffers ``own``; requests after them, up to ``size``, write nothing and read no
    prefix."""
    requests = len(given.ids)
    for field in fields(own):
        if field.name != "features":
            getattr(own, field.name)[:requests] = getattr(given, field.name)
    own.written[requests:size] = False
    own.prefix_lens[requests:size] = 0


class CapturedPasses:
    def __init__(self, passes: NodePasses[Tensor], max_rows: int) -> None:
        """``passes`` give hidden states ``[R q, d]``; one of them has at most ``max_rows`` rows."""
        self._passes, self._max_rows = passes, max_rows
        self._inputs: dict[PassKind, Nodes] = {}
        # Not kept alive from here: vLLM measures the memory of graphs, drops them and makes others.
        self._graphs: Callable[[], Graphs | None] = lambda: None

    def capture(self, graphs: Graphs, kinds: Iterable[PassKind], device: torch.device, longest: int) -> None:
        """Have passes of these ``kinds`` run in graphs, as long as somebody keeps ``graphs``."""
        most = graphs.sizes[-1]
        for group in self._passes.groups:
            group.block_table[:most].zero_()
        self._inputs = {kind: buffers(most, kind, device) for kind in kinds}
        self._graphs = ref(graphs)
        graphs.capture_passes(
            {
                (size, kind): partial(self._passes, part(inputs, slice(size)), kind.nodes, longest)
                for size in reversed(graphs.sizes)
                for kind, inputs in self._inputs.items()
                if size * kind.rows <= self._max_rows
            }
        )

    def replays(self, kind: PassKind, requests: int) -> bool:
        """Whether such passes run in a graph."""
        graphs = self._graphs()
        return graphs is not None and graphs.size_for(requests, kind) is not None

    def __call__(self, nodes: Nodes, num_nodes: int, longest: int) -> Tensor:
        """Hidden states ``[R q, d]``, which the next pass may overwrite; ``longest`` KV slots, those of the nodes
        included."""
        requests, q = nodes.ids.shape
        kind, graphs = PassKind(q, num_nodes), self._graphs()
        size = None if graphs is None else graphs.size_for(requests, kind)
        if graphs is not None and size is not None:
            fill(self._inputs[kind], nodes, size)
            hidden: Tensor = graphs.replay(size, kind)
            return hidden[: requests * q]
        return self._in_parts(nodes, num_nodes, longest)

    def _in_parts(self, nodes: Nodes, num_nodes: int, longest: int) -> Tensor:
        """As many passes as the rows need."""
        requests, q = nodes.ids.shape
        parts = list(request_parts(requests, q, self._max_rows))
        if len(parts) <= 1:
            return self._passes(nodes, num_nodes, longest)
        return torch.cat([self._passes(part(nodes, rows), num_nodes, longest, rows.start) for rows in parts])
