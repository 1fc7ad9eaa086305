"""Drafting trees with a drafter over the target's hidden states.

vLLM's speculator runs the drafter over the rows of the step, accepted path first; from there trees grow. Where every
request of the step verified a tree, the drafter runs over the accepted paths only. Chains are drafted as vLLM does.
Shapes: ``R`` requests, ``W`` rows of an accepted path (levels + 1), ``d`` hidden size.
"""

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.replacements import replaces
from vllm_specext.engine.tree_growth import TreeGrower
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.expansion import best_tokens


class TreeSpeculator(TreeGrower):
    def make_buffers(self, shape: TreeShape) -> None:
        super().make_buffers(shape)
        slots = self.max_num_reqs
        self.path_ids = torch.zeros(slots, shape.levels + 1, dtype=torch.int64, device=self.device)
        self.path_starts = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self.path_ends = torch.zeros(slots, dtype=torch.int64, device=self.device)

    def stop_writing(self, first: int, end: int) -> None:
        super().stop_writing(first, end)
        self.path_starts[first:end] = 0
        self.path_ends[first:end] = 0

    @replaces(
        "vllm.config.speculative.SpeculativeConfig.num_speculative_tokens_per_batch_size",
        name="schedule while graphs are captured",
        why="vLLM captures a decoding pass for every number in the schedule; those of trees are no chains",
        how="set while our speculator captures, and no longer: sizes of trees count as nothing",
        upstream="none: vLLM drafts chains only",
        until="vLLM captures what the speculator asks for",
        kind="set",
    )
    def capture(self) -> None:
        """Graphs of vLLM's first pass, of decoding for the sizes that are chains, and of growing trees."""
        if self.shape is None:
            super().capture()
            return
        schedule = self.speculative_config.num_speculative_tokens_per_batch_size
        levels = self.shape.levels
        chains = [[first, last, nodes if nodes <= levels else 0] for first, last, nodes in schedule]
        self.speculative_config.num_speculative_tokens_per_batch_size = chains
        try:
            super().capture()
        finally:
            self.speculative_config.num_speculative_tokens_per_batch_size = schedule
        self.capture_growth()

    def sample_draft(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The best token of each row; a tree's first level needs the runners-up too."""
        if self.shape is None:
            return super().sample_draft(hidden_states, *args, **kwargs)
        tokens, log_probs = best_tokens(self.model.compute_logits(hidden_states), self.shape.top_k)
        # Kept in place: a captured graph ends here, and the levels go on outside.
        self.first_tokens[: len(tokens)] = tokens
        self.first_log_probs[: len(tokens)] = log_probs
        return tokens[:, 0]

    def features(
        self, last_hidden_states: Tensor, aux_hidden_states: list[Tensor] | None, rows: Tensor | None
    ) -> Tensor:
        """What the drafter reads of the step's ``rows``, of all where there are none: ``[rows, d]``."""
        return last_hidden_states if rows is None else last_hidden_states[rows]

    @replaces(
        "vllm.v1.worker.gpu.input_batch.InputBatch.input_ids",
        name="accepted tokens first",
        why="vLLM's drafters read the accepted tokens from the first rows of a request; those of a tree are scattered",
        how="where chains follow trees, the rows of the accepted paths are written first",
        upstream="none: vLLM's drafts are chains",
        until="vLLM verifies trees whose shape differs by request",
        kind="set",
    )
    def propose(
        self,
        input_batch: InputBatch,
        attn_metadata: dict[str, Any],
        slot_mappings: dict[str, Tensor],
        last_hidden_states: Tensor,
        aux_hidden_states: list[Tensor] | None,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        *args: Any,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        nodes = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        requests = input_batch.num_reqs
        shape = None if self.shape is None else self.shape_for(nodes, requests)
        tree = shape if shape is not None and shape.top_k > 1 else None
        source = self.accepted_paths(input_batch) if tree is not None else None
        if source is not None:
            features = self.features(last_hidden_states, aux_hidden_states, source.flatten())
            self._lay_out_paths(input_batch, source, features, num_sampled, last_sampled)
        drafted = self.draft_tokens[:requests]
        if source is None:
            features = self.features(last_hidden_states, aux_hidden_states, None)
            if shape is not None and self.trees is not None and not dummy_run:
                features = self.trees.as_chain(input_batch, features)
                input_batch.input_ids.copy_(self.trees.as_chain(input_batch, input_batch.input_ids))
            drafted = super().propose(
                input_batch,
                attn_metadata,
                slot_mappings,
                features,
                None,
                num_sampled,
                num_rejected,
                last_sampled,
                *args,
                dummy_run=dummy_run,
                skip_attn_for_dummy_run=skip_attn_for_dummy_run,
                num_speculative_tokens=1 if tree is not None else nodes if shape is None else shape.nodes,
                **kwargs,
            )
        if skip_attn_for_dummy_run:
            if shape is not None:
                self.rehearse()
            return drafted
        if tree is not None:
            grown = self.grow(input_batch, num_rejected, tree, reads_paths=source is not None, dummy_run=dummy_run)
            self.draft_tokens[:requests, : tree.nodes] = (
                grown.tokens if dummy_run else self.keep_trees(input_batch, grown)
            )
            self.draft_tokens[:requests, tree.nodes : nodes] = 0
            return self.draft_tokens[:requests]
        if shape is not None and self.trees is not None and nodes > 0:
            # The scheduler counts on all nodes; what follows a shorter chain is only ever padding.
            drafted[:, shape.nodes : nodes] = 0
            if not dummy_run:
                self.keep_chains(input_batch, shape.nodes, nodes)
        return drafted

    def _lay_out_paths(
        self, batch: InputBatch, source: Tensor, features: Tensor, num_sampled: Tensor, last_sampled: Tensor
    ) -> None:
        """Copy the accepted paths, rows ``source`` ``[R, W]`` with ``features`` ``[R W, d]``, to where ``start``
        expects them."""
        assert self.trees is not None
        requests, width = source.shape
        place = torch.arange(width, device=self.device)
        ends = num_sampled - 1
        following = batch.input_ids[source.roll(-1, dims=1)]
        drawn = last_sampled.view(-1)[batch.idx_mapping].to(following.dtype)[:, None]
        self.path_ids[:requests] = torch.where(place == ends[:, None], drawn, following)
        self.path_starts[:requests] = self.trees.prefix_lens[:requests]
        self.path_ends[:requests] = ends
        self.hidden_states[: requests * width] = features

    def start(self, requests: int, reads_paths: bool, longest: int) -> None:
        """vLLM's own first pass has left the first level, unless it ``reads_paths``."""
        if reads_paths:
            self._read_paths(requests, longest)

    def _read_paths(self, requests: int, longest: int) -> None:
        assert self.trees is not None
        width = self.path_ids.shape[1]
        place = torch.arange(width, device=self.device)
        root, ends = self.path_starts[:requests, None], self.path_ends[:requests, None]
        predict, regress = self.run_rows(
            ids=self.path_ids[:requests],
            features=self.hidden_states[: requests * width],
            positions=root + place,
            slots=root + place,
            written=self.writes[:requests, None] & (place <= ends),
            prefix_lens=root[:, 0],
            visible=self.trees.causal[:width].expand(requests, -1, -1),
            num_nodes=width,
            longest=longest,
        )
        rows = torch.arange(requests, device=self.device) * width + ends[:, 0]
        self.sample_draft(predict[rows])
        self.hidden_states[:requests] = regress[rows]
