"""Draft trees between two steps.

They stay on the device, by vLLM's request slot: drafting writes a request's tree, the next step lays it out. vLLM's
scheduler learns how many tokens were drafted, and their parents only for grammars (``drafting/told_trees.py``).
Shapes: ``S`` request slots, ``R`` requests of a step, ``V`` of them that verify a draft.
"""

import numpy as np
import torch
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.verification.layout import TreeLayout
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.kernels.tree_layout import lay_out
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.topology import Topology


class TreeStates:
    """The trees of all request slots; until the first draft they are chains."""

    def __init__(
        self,
        shape: TreeShape,
        max_num_reqs: int,
        max_model_len: int,
        device: torch.device,
        recorded: bool = False,
        levels: int = 0,
        chain_rows: int = 0,
    ) -> None:
        """``shape``: the largest tree; ``max_num_reqs``: ``S``; ``recorded``: whether passes over trees are replayed
        on longer requests, so that their bound is the model's; ``levels``: of chains longer than trees are deep;
        ``chain_rows``: up to so many rows drafts are chains, and their graphs have causal attention, at which vLLM's
        backends are faster."""
        self.shape, self.levels = shape, max(levels, shape.depth)
        self.chain_rows = chain_rows
        self.last_position = max_model_len - 1
        self.recorded = recorded
        self.device = device
        self.topology = Topology.chain(max_num_reqs, shape.nodes, device)
        self.is_chain = np.ones(max_num_reqs, dtype=bool)
        self.is_long = np.zeros(max_num_reqs, dtype=bool)
        self.expected = torch.zeros(max_num_reqs, dtype=torch.float32, device=device)
        """How many tokens are expected to be accepted of a tree with as many nodes as ``told``."""
        self.told = np.zeros(max_num_reqs, dtype=np.int64)
        """0 where nothing is expected."""
        self.causal = self.topology.ancestors[0].clone()
        """Ancestors of a chain's nodes, ``[N + 1, words]``."""
        self._itself = torch.arange(shape.nodes + 1, device=device)
        # A captured graph reads these, so they are written in place; until the first step they hold chains.
        self._visible = self.topology.ancestors.clone()
        self._prefix_lens = torch.zeros(max_num_reqs, dtype=torch.int32, device=device)

    def write(
        self,
        slots: Tensor,
        slots_np: np.ndarray,
        topology: Topology,
        is_chain: np.ndarray | bool,
        is_long: np.ndarray | bool = False,
        expected: Tensor | None = None,
    ) -> None:
        """Keep the trees just drafted for the requests in ``slots`` ``[R]``, which are on the device and on the host.
        ``is_chain`` and ``is_long``, ``[R]`` or one for all: which are chains, and longer ones than trees are deep.
        ``expected``: how many tokens of those that are no chains are expected to be accepted, ``[R]``."""
        nodes = topology.parents.shape[1]
        self.topology.parents[slots, :nodes] = topology.parents
        self.topology.depths[slots, :nodes] = topology.depths
        words = topology.ancestors.shape[2]
        self.topology.ancestors[slots, :nodes, :words] = topology.ancestors
        if nodes < self.topology.parents.shape[1]:
            # Whatever is scheduled beyond what was drafted is padding, and not a part of an older tree.
            self.topology.parents[slots, nodes:] = self._itself[nodes:]
        self.is_chain[slots_np], self.is_long[slots_np] = is_chain, is_long
        self.told[slots_np] = 0 if expected is None else np.where(is_chain, 0, nodes - 1)
        if expected is not None:
            self.expected[slots] = expected

    def lay_out(self, batch: InputBatch, prefill_lens: Tensor) -> TreeLayout | None:
        """Lay out the trees that ``batch`` verifies, whose positions become those of the nodes' depths; ``None`` where
        it verifies none. ``prefill_lens`` ``[S]``: a request with a shorter prefix has no draft."""
        drafted = batch.num_draft_tokens_per_req
        requests = 0 if drafted is None else int(np.count_nonzero(drafted))
        if requests == 0:
            return None
        drafted = drafted[:requests]
        if not drafted.all() or not np.array_equal(batch.num_scheduled_tokens[:requests], drafted + 1):
            raise RuntimeError("vLLM scheduled a request's draft together with tokens of its prompt")
        rows = int(batch.query_start_loc_np[requests])
        # The first rows of the step are the first rows of the logits: these requests have no others. vLLM schedules
        # drafts for a request that has none when it takes over a prompt computed elsewhere. Padding is deeper than any
        # walk goes, so that near the context's end its positions would lie after the last one that there is.
        chain_positions = lay_out(
            batch.idx_mapping[:requests],
            batch.query_start_loc[: requests + 1],
            batch.seq_lens[:requests],
            prefill_lens,
            self.topology,
            self.causal,
            batch.positions[:rows],
            self.last_position,
            self._prefix_lens,
            self._visible,
        )
        longest = self.last_position + 1 if self.recorded else int(batch.seq_lens_cpu_upper_bound[:requests].max())
        return self._layout(
            requests,
            rows,
            query=int(drafted.max()) + 1,
            starts=batch.query_start_loc,
            longest=longest,
            levels=self.levels if self.is_long[batch.idx_mapping_np[:requests]].any() else self.shape.depth,
            chains=bool(self.is_chain[batch.idx_mapping_np[:requests]].all()),
            chain_positions=chain_positions,
        )

    def for_capture(self, batch: InputBatch, longest: int) -> TreeLayout | None:
        """A layout of equally long trees for a graph that is captured now; ``None`` for chains and other batches."""
        query, rest = divmod(batch.num_tokens, batch.num_reqs)
        if rest or not max(1, self.chain_rows) < query <= self.shape.nodes + 1:
            return None
        return self._layout(batch.num_reqs, batch.num_tokens, query, batch.query_start_loc, longest)

    def fits_graph(self, slots: np.ndarray, query: int) -> bool:
        """Whether drafts of ``slots`` ``[V]``, of ``query`` rows, fit a whole graph. A cut tree may be too short."""
        return query > self.chain_rows or bool(self.is_chain[slots].all())

    def rows_for_warm_up(self, requests: int, query: int, block_table: Tensor, longest: int) -> TreeRows:
        """A step in which none of ``requests`` has a row, but might have up to ``query``."""
        starts = torch.zeros(requests + 1, dtype=torch.int32, device=self.device)
        return self._layout(requests, 0, query, starts, longest).rows_on(block_table)

    def depth_positions(self, positions: Tensor, request_slots: Tensor, nodes: Tensor) -> Tensor:
        """Positions of logits rows ``[L]`` by depth, from those of a chain; ``request_slots`` and ``nodes`` ``[L]``."""
        nodes = nodes.long()
        return positions - nodes + self.topology.depths[request_slots, nodes]

    def _layout(
        self,
        requests: int,
        rows: int,
        query: int,
        starts: Tensor,
        longest: int,
        levels: int | None = None,
        chains: bool = False,
        chain_positions: Tensor | None = None,
    ) -> TreeLayout:
        return TreeLayout(
            requests=requests,
            rows=rows,
            query=query,
            starts=starts[: requests + 1],
            prefix_lens=self._prefix_lens[:requests],
            visible=self._visible[:requests, :query],
            longest=longest,
            levels=self.shape.depth if levels is None else levels,
            chains=chains,
            chain_positions=chain_positions,
        )
