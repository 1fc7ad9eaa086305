"""MoA on vLLM's V2 runner.

After every step the drafter takes in what the target has computed: for each new token, the keys and values of all the
target's layers become one key and value of cross-attention, and its embedding one of self-attention, both in the
drafter's own paged cache at the token's own slot. They depend on nothing but the tokens up to theirs, so that cached
prefixes keep them. Then the last sampled token is read, and a tree or a chain grows from it. Self-attention sees the
text and a node's ancestors; cross-attention sees what the target has verified and nothing else. With target-layer
inference the target's last layers follow, over their own cache, whose slots behind the accepted prefix are the next
verification's to overwrite.
Shapes: ``R`` requests, ``W`` rows of an accepted path (levels + 1), ``T`` rows of a step.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.attention import pages, wrap_draft_layers
from vllm_specext.engine.tree_growth import PAD_SLOT, TreeGrower
from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.kv_gather import gather
from vllm_specext.kernels.pointers import Caches
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.expansion import best_tokens

CHUNK = 1024
"""Most tokens whose keys and values of all layers are collected at once: 128 KiB each for Llama 3 8B."""


class MoASpeculator(TreeGrower):
    is_recurrent = False

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        drafted = self.num_speculative_steps
        self.shape = self.shape or TreeShape(nodes=drafted, levels=drafted, top_k=1)
        self.caches: Caches | None = None

    def make_buffers(self, shape: TreeShape) -> None:
        super().make_buffers(shape)
        slots = self.max_num_reqs
        self.root_ids = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self.path_ids = torch.zeros(slots, shape.levels + 1, dtype=torch.int64, device=self.device)
        self.path_starts = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self.path_ends = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self.own_bit = torch.ones(1, 1, 1, dtype=torch.int32, device=self.device)

    def stop_writing(self, first: int, end: int) -> None:
        super().stop_writing(first, end)
        self.path_starts[first:end] = 0
        self.path_ends[first:end] = 0

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter: Any = super().load_draft_model(target_model, target_attn_layer_names)
        is_wrapped = hasattr(target_model, "get_language_model")
        language_model: Any = target_model.get_language_model() if is_wrapped else target_model
        # Targets that scale or cap their logits do so here.
        drafter.logits_processor = language_model.logits_processor
        layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        self.target_names = [name for name in layers if name in target_attn_layer_names]
        self.inferred_names: set[str] = set()
        if inference := self.draft_model_config.hf_config.target_layer_inference:
            last = language_model.model.layers[-inference:]
            drafter.infer_target_layers(last, language_model.model.norm)
            self.inferred_names = set(self.target_names[-inference:])
            assert self.shape is not None
            wrap_draft_layers([layers[name] for name in self.inferred_names], self.shape.levels)
        return drafter

    def set_attn(self, *args: Any) -> None:
        super().set_attn(*args)
        layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        groups = enumerate(self.kv_cache_config.kv_cache_groups)
        holding = [group for group, of_group in groups if set(self.target_names) & set(of_group.layer_names)]
        if len(holding) != 1:
            raise ConfigurationError(
                f"method 'moa' needs a target whose layers all cache alike, but they are in {len(holding)} groups."
            )
        self.target_group = holding[0]
        self.target_layers = [layers[name] for name in self.target_names]
        self.read_attention, self.verified_attention = (
            layer.self_attn.attn for layer in (self.model.model.self_attention, self.model.model.cross_attention)
        )
        self.own_groups = {name: group for group, names in self.groups for name in names}
        self.caches = None

    def row_layer_names(self) -> set[str]:
        return self.draft_attn_layer_names | self.inferred_names

    def capture(self) -> None:
        self.capture_growth()

    def grown_shape(self, nodes: int, requests: int) -> TreeShape | None:
        return self.shape_for(nodes, requests) if nodes else None

    def rows_by_layer(self, names: set[str], rows: TreeRows) -> dict[str, TreeRows]:
        by_layer = dict.fromkeys(names, rows)
        verified = self.verified_attention.layer_name
        if verified in names:
            # All rows see the verified tokens, the last of which passes for the one node that the kernel asks for.
            requests, width, _ = rows.visible.shape
            by_layer[verified] = replace(
                rows,
                prefix_lens=(self.tree_starts[:requests] - self.root_slots - 1).clamp(min=0),
                visible=self.own_bit.expand(requests, width, 1),
                num_nodes=1,
            )
        return by_layer

    @torch.inference_mode()
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
        next_prefill_tokens: Tensor,
        *args: Any,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        nodes = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        batch, requests = input_batch, input_batch.num_reqs
        drafted = self.draft_tokens[:requests]
        if skip_attn_for_dummy_run or not attn_metadata:
            self._rehearse_keeping(batch.num_tokens)
            self.rehearse()
            return drafted
        reads_paths = self._lay_out_paths(batch, num_sampled)
        if not reads_paths:
            self._keep_rows(batch, slot_mappings)
        slots = batch.idx_mapping
        sampled, prompt = last_sampled.view(-1)[slots], next_prefill_tokens.view(-1)[slots]
        self.root_ids[:requests] = torch.where(num_sampled > 0, sampled, prompt.to(sampled.dtype))
        shape = self.shape_for(nodes, requests)
        if shape.nodes == 0:
            if reads_paths:
                self.writes[:requests] = not dummy_run
                self._keep_paths(requests)
            drafted[:, :nodes] = 0
            if nodes and self.trees is not None and not dummy_run:
                self.keep_chains(batch, 0, nodes)
            return drafted
        grown = self.grow(batch, num_rejected, shape, reads_paths=reads_paths, dummy_run=dummy_run)
        # The scheduler counts on all nodes; what follows a shorter chain is only ever padding.
        drafted[:, shape.nodes : nodes] = 0
        drafted[:, : shape.nodes] = grown.tokens
        if self.trees is not None and not dummy_run:
            if shape.top_k == 1:
                self.keep_chains(batch, shape.nodes, nodes)
            else:
                drafted[:, : shape.nodes] = self.keep_trees(batch, grown)
        return drafted

    def start(self, requests: int, reads_paths: bool, longest: int) -> None:
        assert self.shape is not None
        if reads_paths:
            self._keep_paths(requests)
        root = self.tree_starts[:requests, None] - self.root_slots
        features, _ = self.run_rows(
            ids=self.root_ids[:requests, None],
            features=None,
            positions=root,
            slots=root,
            written=self.writes[:requests, None],
            prefix_lens=root[:, 0],
            visible=self.own_bit.expand(requests, 1, 1),
            num_nodes=1,
            longest=longest + self.root_slots,
        )
        tokens, log_probs = best_tokens(self.model.compute_logits(features), self.shape.top_k)
        self.first_tokens[:requests] = tokens
        self.first_log_probs[:requests] = log_probs

    def _lay_out_paths(self, batch: InputBatch, num_sampled: Tensor) -> bool:
        """Copy the accepted paths to where ``start`` expects them; false unless every request verified a tree."""
        source = self.accepted_paths(batch)
        if source is None or self.trees is None:
            return False
        requests = batch.num_reqs
        self.path_ids[:requests] = batch.input_ids[source]
        self.path_starts[:requests] = self.trees.prefix_lens[:requests]
        self.path_ends[:requests] = num_sampled - 1
        return True

    def _keep_paths(self, requests: int) -> None:
        place = torch.arange(self.path_ids.shape[1], device=self.device)
        positions = self.path_starts[:requests, None] + place
        accepted = self.writes[:requests, None] & (place <= self.path_ends[:requests, None])

        def slots(group: int) -> Tensor:
            return torch.where(accepted, self.cache_slots(group, positions), PAD_SLOT).flatten()

        own = {name: slots(self.own_groups[name]) for name in self._own_names()}
        positions = positions.clamp(max=self.max_model_len - 1)
        self._keep(self.path_ids[:requests].flatten(), positions.flatten(), slots(self.target_group), own)

    def _keep_rows(self, batch: InputBatch, slot_mappings: dict[str, Tensor]) -> None:
        """All rows of the step, accepted ones first. The others are taken in too, for nobody to read: how many they are
        is known on the device only."""
        ids, rows = batch.input_ids, batch.num_tokens
        if self.trees is not None:
            ids = self.trees.as_chain(batch, ids)
        target = slot_mappings[self.target_names[0]]
        for first in range(0, rows, CHUNK):
            part = slice(first, min(first + CHUNK, rows))
            own = {name: slot_mappings[name][part] for name in self._own_names()}
            self._keep(ids[part], batch.positions[part], target[part], own)

    def _keep(self, ids: Tensor, positions: Tensor, target_slots: Tensor, own_slots: dict[str, Tensor]) -> None:
        """Take in tokens ``[T]``, given where the target has their keys and values and where ours go."""
        if self.caches is None:
            self.caches = Caches(view for layer in self.target_layers for view in pages(layer.kv_cache))
        kv = gather(self.caches, target_slots.long()).to(self.dtype)
        made = self.model.keys_values(ids, positions, kv)
        for layer, (keys, values) in zip((self.read_attention, self.verified_attention), made, strict=True):
            shape = (-1, layer.num_kv_heads, layer.head_size)
            layer.impl.do_kv_cache_update(
                layer, keys.reshape(shape), values.reshape(shape), layer.kv_cache, own_slots[layer.layer_name]
            )

    def _own_names(self) -> tuple[str, str]:
        return self.read_attention.layer_name, self.verified_attention.layer_name

    def _rehearse_keeping(self, rows: int) -> None:
        """``_keep`` without a cache, for vLLM to see how much memory it takes."""
        layer = next(iter(get_layers_from_vllm_config(self.vllm_config, Attention).values()))
        rows = min(rows, CHUNK)
        size = (rows, len(self.target_names), layer.num_kv_heads, 2, layer.head_size)
        kv = torch.zeros(size, dtype=self.dtype, device=self.device)
        self.model.keys_values(self.input_buffers.input_ids[:rows], self.input_buffers.positions[:rows], kv)
