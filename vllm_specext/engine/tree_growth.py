"""Growing draft trees in the drafter's own paged cache, level by level.

A drafter starts with the most likely tokens after the last sampled one; from there a tree grows with one pass per level
over the ``k`` frontier nodes of every request. A level's keys and values go to the slots right behind the accepted
prefix, which the scheduler keeps free as lookahead, and are overwritten by the next step. All shapes follow from the
number of requests and the tree's size, nothing waits for the device, and all that a pass reads lies in buffers that
stay where they are, so that the passes can be captured as one graph.
Shapes: ``R`` requests, ``k`` frontier nodes of a request, ``N`` nodes, ``d`` hidden size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.model_executor.layers.attention import Attention
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator

from vllm_specext.engine.attention import wrap_draft_layers
from vllm_specext.engine.graph_sizes import most_drafted
from vllm_specext.engine.growth_graphs import GrowthGraphs
from vllm_specext.engine.requests import Drafting
from vllm_specext.engine.trees import TreeStates
from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.kernels.tree_expansion import expansion
from vllm_specext.tree.budget import TreeShape, shape_for
from vllm_specext.tree.expansion import Expansion, best_tokens
from vllm_specext.tree.topology import Topology

PAD_SLOT = -1


@dataclass(frozen=True)
class Grown:
    growing: Expansion
    tokens: Tensor
    """``[R, N]``, best first."""
    topology: Topology


class TreeGrower(EagleSpeculator):
    """What speculators that grow trees have in common; ``shape`` is the largest tree, ``None`` where none is grown."""

    is_recurrent = True
    """A node's feature is an input of its children's pass."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.shape: TreeShape | None = vllm_config.speculative_config.tree
        self.root_slots: int = vllm_config.speculative_config.options.root_slots
        self.most_drafted = most_drafted(vllm_config)
        self.trees: TreeStates | None = None
        self.groups: list[tuple[int, set[str]]] = []
        """Cache groups, and the names of their layers that a pass over tree nodes runs; none before there are caches,
        when vLLM measures the memory that passes take."""
        self.growth_graphs: GrowthGraphs[Grown] | None = None
        self.req_states: Any = None
        """vLLM's, of all requests."""
        self.draft_lengths: np.ndarray | None = None
        """``[R]``, of the last drafts: where given, what the scheduler is told instead of the same number for all."""

    def make_buffers(self, shape: TreeShape) -> None:
        """What a captured pass reads and what tells it where to write, each ``[slots]`` or ``[slots, k]``."""
        slots, first = self.max_num_reqs, (self.max_num_reqs, shape.top_k)
        self.first_tokens = torch.zeros(first, dtype=torch.int64, device=self.device)
        self.first_log_probs = torch.zeros(first, dtype=torch.float32, device=self.device)
        self.tree_starts = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self.writes = torch.zeros(slots, dtype=torch.bool, device=self.device)

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter = self.make_drafter(target_model, target_attn_layer_names)
        if self.shape is not None:
            self.make_buffers(self.shape)
            layers = get_layers_from_vllm_config(self.vllm_config, Attention)
            own = [layer for name, layer in layers.items() if name not in target_attn_layer_names]
            wrap_draft_layers(own, self.shape.levels)
        return drafter

    def make_drafter(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        """The drafter's module, with what it shares with the target."""
        return super().load_draft_model(target_model, target_attn_layer_names)

    def set_attn(self, model_state: Any, *args: Any) -> None:
        super().set_attn(model_state, *args)
        if self.shape is None:
            return
        self.trees = getattr(model_state, "trees", None)
        for group in (group for groups in self.attn_groups for group in groups):
            if group.kernel_block_size is not None:
                raise ConfigurationError(
                    f"draft trees cannot be drafted on pages of {group.kv_cache_spec.block_size} tokens with the "
                    f"attention backend {group.backend.get_name()}; set --block-size to {group.kernel_block_size}."
                )
        groups = enumerate(self.kv_cache_config.kv_cache_groups)
        row_layers = self.row_layer_names()
        own = ((group, row_layers.intersection(of_group.layer_names)) for group, of_group in groups)
        self.groups = [(group, names) for group, names in own if names]

    def row_layer_names(self) -> set[str]:
        """The attention layers that a pass over tree nodes runs."""
        return self.draft_attn_layer_names

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        super().init_cudagraph_manager(cudagraph_mode)
        if self.shape is not None:
            self.growth_graphs = GrowthGraphs(self.vllm_config, self.device, cudagraph_mode, self.grown_shape)

    def grown_shape(self, nodes: int, requests: int) -> TreeShape | None:
        """What is grown for ``nodes`` scheduled, ``None`` for nothing."""
        shape = self.shape_for(nodes, requests)
        return shape if shape.top_k > 1 else None

    def shape_for(self, nodes: int, requests: int) -> TreeShape:
        """What fits ``nodes``, what the schedule has for so many requests and, with all requests' levels in one pass,
        the drafter's buffers. vLLM's warm-up asks for more than the schedule has, whose memory nobody counted."""
        assert self.shape is not None
        nodes = min(nodes, self.most_drafted[requests])
        shape = shape_for(nodes, self.shape)
        if shape.top_k * requests <= self.max_num_tokens:
            return shape
        return shape_for(min(nodes, self.shape.levels), self.shape)

    def rehearse(self) -> None:
        """Grow what the schedule asks for without a cache, for vLLM to see how much memory it takes."""
        for _, last, nodes in self.speculative_config.schedule:
            requests = min(last, self.max_num_reqs)
            if (shape := self.grown_shape(nodes, requests)) is not None:
                self.stop_writing(0, requests)
                self._grow(requests, shape, reads_paths=False, longest=self.max_model_len)

    def capture_growth(self) -> None:
        assert self.growth_graphs is not None
        self.growth_graphs.capture_all(self._grow_in_graph, self.stop_writing)

    def stop_writing(self, first: int, end: int) -> None:
        """Have passes over the buffers' requests ``first`` to ``end`` write no keys and values; nothing reads what such
        a request drafts."""
        self.tree_starts[first:end] = self.root_slots
        self.writes[first:end] = False

    def grow(
        self, batch: InputBatch, num_rejected: Tensor, shape: TreeShape, *, reads_paths: bool, dummy_run: bool
    ) -> Grown:
        """Grow the trees of the batch from what ``start`` finds."""
        requests = batch.num_reqs
        self.tree_starts[:requests] = batch.seq_lens[:requests] - num_rejected[:requests] + self.root_slots
        self.writes[:requests] = not dummy_run
        graphs = self.growth_graphs
        if graphs is not None and (grown := graphs.run(requests, shape, reads_paths, self.stop_writing)):
            own = (tensor[:requests] for tensor in vars(grown.topology).values())
            return Grown(grown.growing, grown.tokens[:requests], Topology(*own))
        longest = int(batch.seq_lens_cpu_upper_bound[:requests].max())
        return self._grow(requests, shape, reads_paths, longest)

    def _grow_in_graph(self, requests: int, shape: TreeShape, reads_paths: bool) -> Grown:
        return self._grow(requests, shape, reads_paths, self.max_model_len)

    def start(self, requests: int, reads_paths: bool, longest: int) -> None:
        """Leave the first level in ``first_tokens`` and ``first_log_probs``, and the features that it came from in
        ``hidden_states``; where it ``reads_paths``, from the accepted paths that were laid out in the buffers."""
        raise NotImplementedError

    def _grow(self, requests: int, shape: TreeShape, reads_paths: bool, longest: int) -> Grown:
        self.start(requests, reads_paths, longest)
        longest += self.root_slots + (shape.levels - 1) * shape.top_k
        k, starts = shape.top_k, self.tree_starts[:requests, None]
        features = self.hidden_states[:requests, None].expand(-1, k, -1) if self.is_recurrent else None
        growing = expansion(self.first_tokens[:requests, :k], self.first_log_probs[:requests, :k], shape.levels)
        for level in range(shape.levels - 1):
            predict, regress = self.run_rows(
                ids=growing.frontier.tokens,
                features=features,
                positions=(starts + level).expand(-1, k),
                slots=starts + level * k + growing.place,
                written=self.writes[:requests, None],
                prefix_lens=starts[:, 0],
                visible=growing.frontier.visible,
                num_nodes=(level + 1) * k,
                longest=longest,
            )
            tokens, log_probs = best_tokens(self.model.compute_logits(predict), k)
            growing.grow(tokens.view(requests, k, -1), log_probs.view(requests, k, -1))
            if features is not None:
                parents = growing.frontier.parents[..., None].expand_as(features)
                features = regress.view(requests, k, -1).gather(1, parents)
        return Grown(growing, *growing.tree(shape.nodes))

    def run_rows(
        self,
        *,
        ids: Tensor,
        features: Tensor | None,
        positions: Tensor,
        slots: Tensor,
        written: Tensor,
        prefix_lens: Tensor,
        visible: Tensor,
        num_nodes: int,
        longest: int,
    ) -> tuple[Tensor, Tensor]:
        """The drafter on ``q`` rows of every request, ``[R, q]`` or ``[R, q, d]``; predict and regress features
        ``[R q, d]``. ``slots`` are counted within the request; keys and values are kept where ``written``, and none
        behind the context's end. ``visible`` ``[R, q, W]`` are bits of the ``num_nodes`` slots behind ``prefix_lens``
        ``[R]``."""
        requests, q = ids.shape
        count = requests * q
        self.input_buffers.input_ids[:count] = ids.flatten()
        self.input_buffers.positions[:count] = positions.flatten().clamp(max=self.max_model_len - 1)
        if features is not None:
            self.hidden_states[:count] = features.reshape(count, -1)
        written = written & (slots < self.max_model_len)
        starts = torch.arange(0, count + 1, q, dtype=torch.int32, device=self.device)
        rows: dict[str, TreeRows] = {}
        slot_mappings: dict[str, Tensor] = {}
        for group, names in self.groups:
            table = self.block_tables.input_block_tables[group][:requests]
            of_group = TreeRows(
                block_table=table,
                query_start_loc=starts,
                prefix_lens=prefix_lens,
                visible=visible,
                num_rows=count,
                max_query_len=q,
                num_nodes=num_nodes,
                max_seq_len=min(longest, self.max_model_len),
            )
            rows |= self.rows_by_layer(names, of_group)
            mapping = torch.where(written, self.cache_slots(group, slots), PAD_SLOT)
            slot_mappings |= dict.fromkeys(names, mapping.flatten())
        # Without metadata, layers skip attention.
        return self._run_model(count, rows or None, slot_mappings or None, num_tokens_across_dp=None)

    def rows_by_layer(self, names: set[str], rows: TreeRows) -> dict[str, TreeRows]:
        """What the layers of a cache group see of a pass."""
        return dict.fromkeys(names, rows)

    def accepted_paths(self, batch: InputBatch) -> Tensor | None:
        """Rows ``[R, levels + 1]`` of the paths that this step accepted, where every request of it verified a tree and
        their paths fit the drafter's buffers."""
        step = self.trees.step if self.trees is not None else None
        if step is None or step.batch is not batch or step.source is None:
            return None
        requests, width = step.source.shape
        return step.source if requests == batch.num_reqs and requests * width <= self.max_num_tokens else None

    def cache_slots(self, group: int, slots: Tensor) -> Tensor:
        """Slots of a cache group, int64, of slots ``[R, q]`` counted within the batch's first ``R`` requests."""
        page_size = self.kv_cache_config.kv_cache_groups[group].kv_cache_spec.block_size
        table = self.block_tables.input_block_tables[group][: slots.shape[0]]
        page = table.gather(1, (slots // page_size).clamp(max=table.shape[1] - 1)).long()
        return page * page_size + slots % page_size

    def keep_trees(self, batch: InputBatch, grown: Grown) -> Tensor:
        """Hand the trees to the next step's verification, with a chain for requests that need one: the best path of
        what was grown. All shapes stay. Returns the tokens ``[R, N]``."""
        assert self.trees is not None
        tokens, topology = grown.tokens, grown.topology
        needs_chain = self.trees.kinds[batch.idx_mapping_np] != Drafting.TREE
        if needs_chain.any():
            # The scheduler takes no more of a chain than the tree has levels; what follows is only ever padding.
            chain = torch.zeros_like(tokens)
            path = grown.growing.chain()[: len(tokens), : tokens.shape[1]]
            chain[:, : path.shape[1]] = path
            chosen = async_tensor_h2d(needs_chain, device=self.device)[:, None]
            chains = Topology.chain(batch.num_reqs, tokens.shape[1], self.device).padded_after(path.shape[1])
            tokens = torch.where(chosen, chain, tokens)
            topology = topology.where(chosen, chains)
        self.trees.write(batch.idx_mapping, batch.idx_mapping_np, topology, needs_chain)
        return tokens

    def keep_chains(self, batch: InputBatch, length: int, nodes: int) -> None:
        """The same where every request was drafted a chain of ``length`` tokens, padded to the ``nodes`` that the
        scheduler counts on."""
        assert self.trees is not None
        chains = Topology.chain(batch.num_reqs, nodes, self.device).padded_after(length)
        everyone = np.ones(batch.num_reqs, dtype=bool)
        self.trees.write(batch.idx_mapping, batch.idx_mapping_np, chains, everyone)
