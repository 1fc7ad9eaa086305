"""Drafting trees with a drafter over the target's last hidden states, in the drafter's own paged cache.

vLLM's speculator runs the drafter over the rows of the step, accepted path first; from there the tree grows level by
level, one pass each over the ``k`` frontier nodes of every request. A level's keys and values go to the slots right
behind the accepted prefix, which the scheduler keeps free as lookahead, and are overwritten by the next step. All
shapes follow from the number of requests and the tree's size, and nothing waits for the device.
Shapes: ``R`` requests, ``k`` frontier nodes of a request, ``d`` hidden size.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator

from vllm_specext.engine.attention import wrap_draft_layers
from vllm_specext.engine.requests import Drafting
from vllm_specext.engine.trees import TreeStates
from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.tree.budget import TreeShape, shape_for
from vllm_specext.tree.expansion import Expansion, best_tokens
from vllm_specext.tree.topology import Topology

PAD_SLOT = -1


class TreeSpeculator(EagleSpeculator):
    """Drafts chains as vLLM does where the configuration has no tree."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.shape: TreeShape | None = vllm_config.speculative_config.tree
        self.trees: TreeStates | None = None
        if self.shape is not None:
            first = (self.max_num_reqs, self.shape.top_k)
            self.first_tokens = torch.zeros(first, dtype=torch.int64, device=device)
            self.first_log_probs = torch.zeros(first, dtype=torch.float32, device=device)

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter = super().load_draft_model(target_model, target_attn_layer_names)
        if self.shape is not None:
            layers = get_layers_from_vllm_config(self.vllm_config, Attention)
            own = [layer for name, layer in layers.items() if name not in target_attn_layer_names]
            wrap_draft_layers(own, self.shape.levels)
        return drafter

    def set_attn(self, model_state: Any, *args: Any) -> None:
        super().set_attn(model_state, *args)
        if self.shape is None:
            return
        self.trees = model_state.trees
        for group in (group for groups in self.attn_groups for group in groups):
            if group.kernel_block_size is not None:
                raise ConfigurationError(
                    f"draft trees cannot be drafted on pages of {group.kv_cache_spec.block_size} tokens with the "
                    f"attention backend {group.backend.get_name()}; set --block-size to {group.kernel_block_size}."
                )
        groups = enumerate(self.kv_cache_config.kv_cache_groups)
        own = ((group, self.draft_attn_layer_names.intersection(of_group.layer_names)) for group, of_group in groups)
        self.groups = [(group, names) for group, names in own if names]

    def capture(self) -> None:
        """Graphs of the first pass, and of decoding for the sizes that are chains; trees grow outside of graphs."""
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

    def sample_draft(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The best token of each row; a tree's first level needs the runners-up too."""
        if self.shape is None:
            return super().sample_draft(hidden_states, *args, **kwargs)
        tokens, log_probs = best_tokens(self.model.compute_logits(hidden_states), self.shape.top_k)
        # Kept in place: a captured graph ends here, and the levels go on outside.
        self.first_tokens[: len(tokens)] = tokens
        self.first_log_probs[: len(tokens)] = log_probs
        return tokens[:, 0]

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
        num_speculative_tokens: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        nodes = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        shape = None if self.shape is None else self._shape(nodes, input_batch.num_reqs)
        tree = shape if shape is not None and shape.top_k > 1 else None
        if tree is not None and self._read_accepted_path(input_batch, last_hidden_states, num_sampled, last_sampled):
            return self._propose_tree(input_batch, num_rejected, tree, dummy_run)
        if shape is not None and self.trees is not None and not dummy_run:
            last_hidden_states = self.trees.as_chain(input_batch, last_hidden_states)
            input_batch.input_ids.copy_(self.trees.as_chain(input_batch, input_batch.input_ids))
        drafted = super().propose(
            input_batch,
            attn_metadata,
            slot_mappings,
            last_hidden_states,
            aux_hidden_states,
            num_sampled,
            num_rejected,
            last_sampled,
            *args,
            dummy_run=dummy_run,
            num_speculative_tokens=1 if tree is not None else nodes if shape is None else shape.nodes,
            **kwargs,
        )
        if shape is None or self.trees is None or nodes == 0:
            return drafted
        if tree is not None:
            return self._propose_tree(input_batch, num_rejected, tree, dummy_run)
        # The scheduler counts on all nodes; what follows a shorter chain is only ever padding.
        drafted[:, shape.nodes : nodes] = 0
        if not dummy_run:
            chains = Topology.chain(input_batch.num_reqs, nodes, self.device)
            everyone = np.ones(input_batch.num_reqs, dtype=bool)
            self.trees.write(input_batch.idx_mapping, input_batch.idx_mapping_np, chains, everyone)
        return drafted

    def _shape(self, nodes: int, requests: int) -> TreeShape:
        """What fits ``nodes`` and, with all requests' levels in one pass, the drafter's buffers."""
        assert self.shape is not None
        shape = shape_for(nodes, self.shape)
        if shape.top_k * requests <= self.max_num_tokens:
            return shape
        return shape_for(min(nodes, self.shape.levels), self.shape)

    def _read_accepted_path(
        self, batch: InputBatch, hidden_states: Tensor, num_sampled: Tensor, last_sampled: Tensor
    ) -> bool:
        """The drafter's pass over what was accepted, where every request of the step verified a tree: over the paths
        instead of over all nodes. Leaves what vLLM's own first pass leaves; false where that has to run."""
        trees = self.trees
        step = trees.step if trees is not None else None
        if trees is None or step is None or step.batch is not batch or step.source is None:
            return False
        requests, width = step.source.shape
        if requests < batch.num_reqs or requests * width > self.max_num_tokens:
            return False
        place = torch.arange(width, device=self.device)
        last = num_sampled[:, None] - 1
        following = batch.input_ids[step.source.roll(-1, dims=1)]
        drawn = last_sampled.view(-1)[batch.idx_mapping].to(following.dtype)[:, None]
        root = trees.prefix_lens[:requests, None]
        slots = root + place
        predict, regress = self._run_rows(
            ids=torch.where(place == last, drawn, following),
            features=hidden_states[step.source],
            positions=slots,
            slots=torch.where(place <= last, slots, self.max_model_len),
            prefix_lens=root[:, 0],
            visible=trees.causal[:width].expand(requests, -1, -1),
            num_nodes=width,
            longest=int(batch.seq_lens_cpu_upper_bound[:requests].max()),
        )
        rows = torch.arange(requests, device=self.device) * width + last[:, 0]
        self.sample_draft(predict[rows])
        self.hidden_states[:requests] = regress[rows]
        return True

    def _propose_tree(self, batch: InputBatch, num_rejected: Tensor, shape: TreeShape, dummy_run: bool) -> Tensor:
        requests, k = batch.num_reqs, shape.top_k
        prefix_lens = (batch.seq_lens[:requests] - num_rejected[:requests])[:, None]
        features = self.hidden_states[:requests, None].expand(-1, k, -1)
        growing = Expansion(self.first_tokens[:requests, :k], self.first_log_probs[:requests, :k], shape.levels)
        longest = int(batch.seq_lens_cpu_upper_bound[:requests].max()) + (shape.levels - 1) * k
        for level in range(shape.levels - 1):
            slots = prefix_lens + level * k + growing.place
            predict, regress = self._run_rows(
                ids=growing.frontier.tokens,
                features=features,
                positions=(prefix_lens + level).expand(-1, k),
                slots=slots.fill_(self.max_model_len) if dummy_run else slots,
                prefix_lens=prefix_lens[:, 0],
                visible=growing.frontier.visible,
                num_nodes=(level + 1) * k,
                longest=longest,
            )
            tokens, log_probs = best_tokens(self.model.compute_logits(predict), k)
            growing.grow(tokens.view(requests, k, -1), log_probs.view(requests, k, -1))
            parents = growing.frontier.parents[..., None].expand(-1, -1, regress.shape[-1])
            features = regress.view(requests, k, -1).gather(1, parents)
        tokens, topology = growing.tree(shape.nodes)
        if not dummy_run:
            tokens, topology = self._straighten(batch, growing, tokens, topology)
        self.draft_tokens[:requests, : shape.nodes] = tokens
        return self.draft_tokens[:requests]

    def _run_rows(
        self,
        *,
        ids: Tensor,
        features: Tensor,
        positions: Tensor,
        slots: Tensor,
        prefix_lens: Tensor,
        visible: Tensor,
        num_nodes: int,
        longest: int,
    ) -> tuple[Tensor, Tensor]:
        """The drafter on ``q`` rows of every request, ``[R, q]`` or ``[R, q, d]``; predict and regress features
        ``[R q, d]``. ``slots`` are counted within the request; those behind the context's end are not written.
        ``visible`` ``[R, q, W]`` are bits of the ``num_nodes`` slots behind ``prefix_lens`` ``[R]``."""
        requests, q = ids.shape
        count = requests * q
        self.input_buffers.input_ids[:count] = ids.flatten()
        self.input_buffers.positions[:count] = positions.flatten().clamp(max=self.max_model_len - 1)
        self.hidden_states[:count] = features.reshape(count, -1)
        rows: dict[str, TreeRows] = {}
        slot_mappings: dict[str, Tensor] = {}
        for group, names in self.groups:
            table = self.block_tables.input_block_tables[group][:requests]
            of_group = TreeRows(
                block_table=table,
                query_start_loc=torch.arange(0, count + 1, q, dtype=torch.int32, device=self.device),
                prefix_lens=prefix_lens,
                visible=visible,
                num_rows=count,
                max_query_len=q,
                num_nodes=num_nodes,
                max_seq_len=min(longest, self.max_model_len),
            )
            page_size = self.kv_cache_config.kv_cache_groups[group].kv_cache_spec.block_size
            page = table.gather(1, (slots // page_size).clamp(max=table.shape[1] - 1)).long()
            mapping = torch.where(slots < self.max_model_len, page * page_size + slots % page_size, PAD_SLOT)
            rows |= dict.fromkeys(names, of_group)
            slot_mappings |= dict.fromkeys(names, mapping.flatten())
        return self._run_model(count, rows, slot_mappings, num_tokens_across_dp=None)

    def _straighten(
        self, batch: InputBatch, growing: Expansion, tokens: Tensor, topology: Topology
    ) -> tuple[Tensor, Topology]:
        """Give requests that need a chain the best path of what was grown, and keep all shapes."""
        assert self.trees is not None
        needs_chain = self.trees.kinds[batch.idx_mapping_np] != Drafting.TREE
        if needs_chain.any():
            # The scheduler takes no more of a chain than the tree has levels; what follows is only ever padding.
            chain = torch.zeros_like(tokens)
            path = growing.chain()[:, : tokens.shape[1]]
            chain[:, : path.shape[1]] = path
            chosen = async_tensor_h2d(needs_chain, device=self.device)[:, None]
            straight = Topology.chain(batch.num_reqs, tokens.shape[1], self.device)
            tokens = torch.where(chosen, chain, tokens)
            topology = Topology(
                torch.where(chosen, straight.parents, topology.parents),
                torch.where(chosen, straight.depths, topology.depths),
                torch.where(chosen[..., None], straight.ancestors, topology.ancestors),
            )
        self.trees.write(batch.idx_mapping, batch.idx_mapping_np, topology, needs_chain)
        return tokens, topology
