"""The draft trees of one step, laid out over the first rows of vLLM's batch.

vLLM sorts requests that verify drafts before all others. A request's nodes are its rows, in node order: they take
contiguous KV slots, their rotary positions follow their depth, and each sees the prefix and its own ancestors.
Shapes: ``V`` requests that verify a draft, ``T`` their rows, ``N`` drafted nodes of the largest tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.verification.attention import attach
from vllm_specext.engine.verification.latent_layers import attach_to_latent, block_table_of
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.kernels.tree_layout import accepted_rows


@dataclass(frozen=True)
class TreeLayout:
    """Where this step's trees lie in the batch, and who sees whom."""

    requests: int
    """``V``"""
    rows: int
    """``T``"""
    query: int
    """Most rows of one request."""
    starts: Tensor
    """First row of each request, and one row after the last, ``[V + 1]`` int32."""
    prefix_lens: Tensor
    """Tokens before each request's root, ``[V]`` int32."""
    visible: Tensor
    """Nodes that a node sees as bits, ``[V, query, words]`` int32."""
    longest: int
    """At least the number of tokens of the longest request, its rows included."""
    levels: int
    """The most nodes that one walk can accept."""
    chains: bool
    """Whether causal attention is right for every request."""
    chain_positions: Tensor | None = None
    """The rows' positions as vLLM counts them, as for a chain, ``[T]``; ``None`` while a graph is captured."""

    def rows_on(self, block_table: Tensor) -> TreeRows:
        """What tree attention is given for layers whose pages are in ``block_table`` ``[V or more, blocks]``."""
        return TreeRows(
            block_table=block_table[: self.requests],
            query_start_loc=self.starts,
            prefix_lens=self.prefix_lens,
            visible=self.visible,
            num_rows=self.rows,
            max_query_len=self.query,
            num_nodes=self.query,
            max_seq_len=self.longest,
        )

    def attach(self, metadata: dict[str, Any], groups: Sequence[Sequence[str]], causal: Tensor | None = None) -> None:
        """Put the trees into the attention ``metadata`` of the target's layers, whose names are given by cache group.
        Layers of one group share their metadata. With latent attention, chains are put there as well, and what rows of
        chains see: ``causal`` ``[N + 1, words]``."""
        if self.chains and causal is None:
            return
        seen: set[int] = set()
        for names in groups:
            for name in names:
                own = metadata[name]
                if id(own) in seen:
                    continue
                seen.add(id(own))
                if causal is None:
                    attach(own, self.rows_on(own.block_table))
                else:
                    attach_to_latent(own, self.rows_on(block_table_of(own)), causal)

    def check_replay(self, batch: InputBatch, chain_rows: int) -> None:
        """Raise ``RuntimeError`` where a whole graph of the target is about to run trees that it was not captured with:
        trees are captured in those graphs alone that hold equally long drafts of more than ``chain_rows`` rows."""
        if self.chains:
            return
        query = int(batch.num_scheduled_tokens[: self.requests].max())
        if query <= chain_rows or batch.num_tokens_after_padding != batch.num_reqs_after_padding * query:
            raise RuntimeError(
                f"vLLM chose a CUDA graph of {batch.num_reqs_after_padding} requests with "
                f"{batch.num_tokens_after_padding} tokens for trees of {query} rows, which it was not captured with"
            )

    def accepted(self, path: Tensor, num_accepted: Tensor) -> "AcceptedPaths":
        """The rows of each request's accepted ``path`` ``[R, levels + 1 or more]`` of nodes, root first, of which the
        first ``num_accepted`` ``[R]`` count; ``R`` is at least ``V``."""
        path = path[: self.requests, : self.levels + 1].contiguous()
        source, destination = accepted_rows(self.starts[:-1], path, num_accepted[: self.requests])
        return AcceptedPaths(source, destination, self.prefix_lens, in_order=self.chains)


@dataclass(frozen=True)
class AcceptedPaths:
    """What a step's verification accepted: from here on, everything sees chains."""

    source: Tensor
    """Rows of the accepted nodes, root first and then the root's own row again, ``[V, levels + 1]`` int64."""
    destination: Tensor
    """The rows that a chain would have them in, ``[V, levels + 1]`` int64."""
    prefix_lens: Tensor
    """Tokens before each request's root, ``[V]`` int32."""
    in_order: bool
    """Whether all drafts were chains, so that nothing has to move."""

    @classmethod
    def of_chains(cls, batch: InputBatch, width: int) -> "AcceptedPaths | None":
        """The rows of a step that verified chains or drafted nothing, at most ``width`` for each request; the accepted
        ones come first. ``None`` where a request reads its prompt."""
        drafted = batch.num_draft_tokens_per_req
        longest = 1 if drafted is None else 1 + int(drafted.max())
        if batch.has_prefill or longest > width or int(batch.num_scheduled_tokens.max()) > longest:
            return None
        starts = batch.query_start_loc[: batch.num_reqs + 1]
        counts = starts[1:] - starts[:-1]
        place = torch.arange(width, device=starts.device)
        rows = starts[:-1, None] + torch.minimum(place, counts[:, None] - 1)
        return cls(rows, rows, batch.seq_lens[: batch.num_reqs] - counts, in_order=True)

    def as_chain(self, rows: Tensor) -> Tensor:
        """``rows`` ``[tokens, ...]`` of the batch with those of the accepted paths first, as a chain has them."""
        if self.in_order:
            return rows
        order = torch.arange(rows.shape[0], device=rows.device)
        return rows[order.index_put((self.destination,), self.source)]

    def move(self, rows: Tensor) -> None:
        """The same in place, which takes no memory for the rows that stay where they are."""
        if not self.in_order:
            rows[self.destination] = rows[self.source]
