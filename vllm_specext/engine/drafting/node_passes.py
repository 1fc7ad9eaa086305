"""A drafter's pass over tree nodes, in the pages of a KV cache.

A chain is a tree too: a text's next tokens are nodes that see those before them.
Shapes: ``R`` requests, ``q`` rows of each, ``d`` hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vllm_specext.kernels.kv_slots import kv_slots
from vllm_specext.kernels.tree_attention import TreeRows

Result = TypeVar("Result")


@dataclass(frozen=True)
class Nodes:
    """Rows of a pass and what they see."""

    ids: Tensor
    """Tokens, ``[R, q]``."""
    positions: Tensor
    """Positions in the text, ``[R, q]``."""
    slots: Tensor
    """KV slots counted within the request, ``[R, q]``."""
    written: Tensor
    """Rows whose keys and values are kept, ``[R, q]`` or ``[R, 1]`` bool."""
    prefix_lens: Tensor
    """KV slots before the nodes, all of which every row sees, ``[R]``."""
    visible: Tensor
    """The nodes after the prefix that a row sees as bits, ``[R, q, words]`` int32."""
    features: Tensor | None = None
    """What the drafter reads beside the token, ``[R, q, d]``; ``None`` where it reads nothing else."""


def in_order(causal: Tensor, ends: Tensor) -> Tensor:
    """What rows of texts see, as bits ``[R, q, words]``: those before them, by ``causal`` ``[q, words]``, and up to
    the last one that counts, ``ends`` ``[R]``. Rows after it have no keys and values; whatever lies in their slots
    would be read for all rows, where a weight of 0 does not cancel a NaN."""
    place = torch.arange(len(causal), device=causal.device)
    return causal[torch.minimum(place, ends[:, None])]


@dataclass(frozen=True)
class CacheGroup:
    """Attention layers that share a block table."""

    layers: Sequence[str]
    page_size: int
    """KV slots of a page."""
    block_table: Tensor
    """Pages of the current batch's requests, ``[R or more, blocks]`` int32, always in the same memory."""

    @property
    def num_slots(self) -> int:
        """KV slots that the block table has for a request."""
        return self.block_table.shape[1] * self.page_size

    def of(self, first: int, requests: int) -> Tensor:
        """Block table of so many ``requests`` of the batch from the ``first`` on, ``[requests, blocks]``."""
        return self.block_table[first : first + requests]

    def kv_slots(self, slots: Tensor, written: Tensor, limit: int, first: int = 0) -> Tensor:
        """KV slots of the cache, ``[R q]`` int64, for ``slots`` ``[R, q]`` counted within requests of the batch, of
        which the ``first`` is given. Rows that are not ``written`` (``[R, q]`` or ``[R, 1]``), or whose slot is not
        below the ``limit`` or not in the table, are kept nowhere."""
        # vLLM may shorten the context to what fits into memory, after the drafter was made and before the tables.
        limit = min(limit, self.num_slots)
        return kv_slots(self.of(first, slots.shape[0]), slots, written, self.page_size, limit)


Run = Callable[[Nodes, dict[str, Any] | None, dict[str, Tensor] | None], Result]
"""Runs a drafter over nodes, given what its layers see (``TreeRows``) and KV slots ``[R q]``, both by layer; ``None``
where there are no caches, so that the layers skip attention."""
See = Callable[[CacheGroup, TreeRows], dict[str, Any]]


def all_alike(group: CacheGroup, rows: TreeRows) -> dict[str, TreeRows]:
    """Every layer of the group sees the same."""
    return dict.fromkeys(group.layers, rows)


class NodePasses(Generic[Result]):
    """A drafter's passes over the nodes of all requests of a batch."""

    def __init__(self, run: Run[Result], max_len: int, see: See = all_alike) -> None:
        """``max_len``: tokens of the longest text. KV slots after it are not written, and positions after it become its
        last one: such rows are padding, or drafted past the end of the context. ``see``: what the layers of a cache
        group see of the rows."""
        self._run, self._max_len = run, max_len
        self.see = see
        """May be set later: of what kind a drafter's layers are is known once vLLM has made them."""
        self.groups: Sequence[CacheGroup] = ()
        """Where keys and values are; none before there are caches, while vLLM measures the memory of passes."""

    def __call__(self, nodes: Nodes, num_nodes: int, longest: int, first: int = 0) -> Result:
        """What the drafter gives for the rows of ``nodes``, whose bits name ``num_nodes``. ``longest``: at least the KV
        slots of the longest request, its nodes included. ``first``: which of the batch's requests the nodes begin with.
        """
        requests, q = nodes.ids.shape
        starts = torch.arange(0, requests * q + 1, q, dtype=torch.int32, device=nodes.ids.device)
        rows: dict[str, Any] = {}
        slot_mappings: dict[str, Tensor] = {}
        for group in self.groups:
            of_group = TreeRows(
                block_table=group.of(first, requests),
                query_start_loc=starts,
                prefix_lens=nodes.prefix_lens,
                visible=nodes.visible,
                num_rows=requests * q,
                max_query_len=q,
                num_nodes=num_nodes,
                max_seq_len=min(longest, self._max_len),
            )
            rows |= self.see(group, of_group)
            kept_in = group.kv_slots(nodes.slots, nodes.written, self._max_len, first)
            slot_mappings |= dict.fromkeys(group.layers, kept_in)
        within = replace(nodes, positions=nodes.positions.clamp(max=self._max_len - 1))
        return self._run(within, rows or None, slot_mappings or None)
