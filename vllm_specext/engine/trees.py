"""Draft trees between two steps, and what the target's step does with them.

Everything is kept on the device by vLLM's request slot: drafting writes a slot's tree, the next step reads it. vLLM's
scheduler only ever learns how many tokens were drafted. During verification a request's nodes lie in contiguous slots
of the cache, their rotary positions follow their depth, and attention sees ancestors only; afterwards the accepted
path is moved to the front, and all that follows sees a chain.
Shapes: ``S`` request slots, ``N`` nodes without the root, ``V`` requests that verify a tree in this step, which vLLM
sorts before all others, and their ``T`` rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.attention import attach, pages
from vllm_specext.engine.replacements import replaces
from vllm_specext.engine.requests import Drafting
from vllm_specext.kernels.kv_compaction import compact
from vllm_specext.kernels.pointers import Caches
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.kernels.tree_layout import accepted_rows, lay_out
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.topology import Topology


@dataclass
class Verification:
    """One step's verification of draft trees."""

    batch: InputBatch
    requests: int
    rows: int
    positions: Tensor
    """``[T]``: as vLLM counts them, for a chain."""
    rows_on: Callable[..., TreeRows]
    """The rows on a cache group's pages, given as ``block_table``."""
    chains: bool
    """Causal attention is right for every request."""
    slot_mappings: Tensor | None = None
    """``[groups, tokens]``."""
    source: Tensor | None = None
    destination: Tensor | None = None
    """Rows ``[V, levels + 1]`` of the accepted paths, and where a chain would have them."""


class TreeStates:
    def __init__(self, shape: TreeShape, slots: int, max_model_len: int, device: torch.device) -> None:
        self.shape = shape
        self.last_position = max_model_len - 1
        self.device = device
        self.topology = Topology.chain(slots, shape.nodes, device)
        self.kinds = np.full(slots, Drafting.TREE)
        self.is_chain = np.ones(slots, dtype=bool)
        self.step: Verification | None = None
        self._caches: list[Caches] = []
        self.causal = self.topology.ancestors[0].clone()
        self._own = torch.arange(shape.nodes + 1, device=device)
        # A captured graph reads these, so they are written in place; until the first step they hold chains.
        self._visible = self.topology.ancestors.clone()
        self.prefix_lens = torch.zeros(slots, dtype=torch.int32, device=device)

    def forget_caches(self) -> None:
        """The layers' caches are others from now on."""
        self._caches = []

    def write(self, slots: Tensor, slots_np: np.ndarray, topology: Topology, chain: np.ndarray) -> None:
        """Keep the trees just drafted for ``slots`` ``[R]``; ``chain`` ``[R]`` bool: those that are chains."""
        nodes = topology.parents.shape[1]
        self.topology.parents[slots, :nodes] = topology.parents
        self.topology.depths[slots, :nodes] = topology.depths
        words = topology.ancestors.shape[2]
        self.topology.ancestors[slots, :nodes, :words] = topology.ancestors
        if nodes < self.topology.parents.shape[1]:
            # Whatever is scheduled beyond what was drafted is padding, and not a part of an older tree.
            self.topology.parents[slots, nodes:] = self._own[nodes:]
        self.is_chain[slots_np] = chain

    def rows_for_warm_up(self, requests: int, query: int, table: Tensor, longest: int) -> TreeRows:
        """A step in which none of ``requests`` has a row, but might have up to ``query``."""
        starts = torch.zeros(requests + 1, dtype=torch.int32, device=self.device)
        return self._rows_on(requests, 0, query, starts, longest)(block_table=table[:requests])

    def begin(self, batch: InputBatch, prefill_lens: Tensor) -> None:
        """Lay out this step's trees: rotary positions by depth, and who sees whom."""
        self.step = None
        drafted = batch.num_draft_tokens_per_req
        requests = 0 if drafted is None else int(np.count_nonzero(drafted))
        if requests == 0:
            return
        drafted = drafted[:requests]
        if not drafted.all() or not np.array_equal(batch.num_scheduled_tokens[:requests], drafted + 1):
            raise RuntimeError("vLLM scheduled a request's draft together with tokens of its prompt")
        rows, query = int(batch.query_start_loc_np[requests]), int(drafted.max()) + 1
        # The first rows of the step are the first rows of the logits: these requests have no others. vLLM schedules
        # drafts for a request that has none when it takes over a prompt computed elsewhere. What pads a draft is deeper
        # than any walk goes, and near the context's end behind the last rotary position.
        positions = lay_out(
            batch.idx_mapping[:requests],
            batch.query_start_loc[: requests + 1],
            batch.seq_lens[:requests],
            prefill_lens,
            self.topology,
            self.causal,
            batch.positions[:rows],
            self.last_position,
            self.prefix_lens,
            self._visible,
        )
        longest = int(batch.seq_lens_cpu_upper_bound[:requests].max())
        self.step = Verification(
            batch=batch,
            requests=requests,
            rows=rows,
            positions=positions,
            rows_on=self._rows_on(requests, rows, query, batch.query_start_loc, longest),
            chains=bool(self.is_chain[batch.idx_mapping_np[:requests]].all()),
        )

    def capture(self, batch: InputBatch, longest: int) -> None:
        """A step of equally long drafts, for a graph that is captured now and replayed on real ones."""
        self.step = None
        query, rest = divmod(batch.num_tokens, batch.num_reqs)
        if rest or not 1 < query <= self.shape.nodes + 1:
            return
        rows_on = self._rows_on(batch.num_reqs, batch.num_tokens, query, batch.query_start_loc, longest)
        self.step = Verification(batch, batch.num_reqs, batch.num_tokens, batch.positions, rows_on, chains=False)

    def check_replay(self, batch: InputBatch) -> None:
        """Raise ``RuntimeError`` where a whole graph of the target is about to run trees that it was not captured with:
        ``capture`` has put trees into those graphs alone that hold equally long drafts."""
        if self.step is None or self.step.batch is not batch or self.step.chains:
            return
        query = int(batch.num_scheduled_tokens[: self.step.requests].max())
        if batch.num_tokens_after_padding != batch.num_reqs_after_padding * query:
            raise RuntimeError(
                f"vLLM chose a CUDA graph of {batch.num_reqs_after_padding} requests with "
                f"{batch.num_tokens_after_padding} tokens for trees of {query} rows, which it was not captured with"
            )

    def attach(
        self, batch: InputBatch, metadata: dict[str, Any], groups: Sequence[Sequence[str]], slot_mappings: Tensor
    ) -> None:
        """Put the trees of ``batch`` into the attention metadata of the target's layers, given by cache group."""
        if self.step is None or self.step.batch is not batch:  # a dummy batch
            return
        self.step.slot_mappings = slot_mappings
        if self.step.chains:
            return
        seen: set[int] = set()
        for names in groups:
            for name in names:
                if id(metadata[name]) in seen:
                    continue
                seen.add(id(metadata[name]))
                table = metadata[name].block_table[: self.step.requests]
                attach(metadata[name], self.step.rows_on(block_table=table))

    @replaces(
        "vllm.v1.worker.gpu.input_batch.InputBatch.positions",
        name="positions of trees",
        why="vLLM counts positions up along a request's rows; those of a tree follow the nodes' depths",
        how="written by depth for the target's pass, and those of a chain put back afterwards",
        upstream="none: vLLM's drafts are chains",
        until="vLLM verifies trees whose shape differs by request",
        kind="set",
    )
    def restore_positions(self, batch: InputBatch) -> None:
        """Give the rows of ``batch`` the positions of a chain again, after the target's pass."""
        if self.step is not None and self.step.batch is batch:
            batch.positions[: self.step.rows] = self.step.positions

    def depth_positions(self, positions: Tensor, slots: Tensor, nodes: Tensor) -> Tensor:
        """Positions of logits rows ``[L]`` by depth, from those of a chain; ``slots`` and ``nodes`` ``[L]``."""
        nodes = nodes.long()
        return positions - nodes + self.topology.depths[slots, nodes]

    def accept(self, batch: InputBatch, path: Tensor, accepted: Tensor, caches: Sequence[Sequence[Any]]) -> None:
        """Move the accepted paths ``[R, levels + 1]`` with ``accepted`` ``[R]`` nodes to the front of their requests'
        slots, in the target's layers, given by cache group."""
        step = self.step
        if step is None or step.batch is not batch:
            return
        step.source, step.destination = accepted_rows(
            batch.query_start_loc[: step.requests], path[: step.requests], accepted[: step.requests]
        )
        if step.chains or step.slot_mappings is None:
            return
        if not self._caches:
            self._caches = [Caches(view for layer in layers for view in pages(layer.kv_cache)) for layers in caches]
        for group, slots in zip(self._caches, step.slot_mappings, strict=True):
            if group:
                compact(group, slots[step.source], slots[step.destination])

    def as_chain(self, batch: InputBatch, rows: Tensor) -> Tensor:
        """``rows`` ``[tokens, ...]`` of ``batch`` with those of the accepted paths first, as a chain has them."""
        step = self.step
        if step is None or step.batch is not batch or step.chains or step.source is None or step.destination is None:
            return rows
        order = torch.arange(rows.shape[0], device=rows.device)
        return rows[order.index_put((step.destination,), step.source)]

    def _rows_on(self, requests: int, rows: int, query: int, starts: Tensor, longest: int) -> Callable[..., TreeRows]:
        return partial(
            TreeRows,
            query_start_loc=starts[: requests + 1],
            prefix_lens=self.prefix_lens[:requests],
            visible=self._visible[:requests, :query],
            num_rows=rows,
            max_query_len=query,
            num_nodes=query,
            max_seq_len=longest,
        )
