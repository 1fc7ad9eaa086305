"""MoA on vLLM's V2 runner.

After every step the drafter takes in what the target has computed: for each new token, the keys and values of all the
target's layers become one key and value of cross-attention, and its embedding one of self-attention, both in the
drafter's own paged cache at the token's own slot. They depend on nothing but the tokens up to theirs, so that cached
prefixes keep them. Then the last sampled token is read, and a tree or a chain grows from it. Self-attention sees the
text and a node's ancestors; cross-attention sees what the target has verified and nothing else. With target-layer
inference the target's last layers follow, over their own cache, whose KV slots after the accepted prefix are the next
verification's to overwrite.
Shapes: ``R`` requests, ``W`` rows of an accepted path (levels + 1), ``T`` rows of a step.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.worker.gpu.spec_decode.eagle.utils import load_eagle_model

from vllm_specext.engine.drafting.cache_groups import cache_groups, check_pages
from vllm_specext.engine.drafting.draft_head import draft_head
from vllm_specext.engine.drafting.graphs import Graphs, draft_graphs
from vllm_specext.engine.drafting.growth import Features, FirstLevel, Roots, TreeGrower
from vllm_specext.engine.drafting.node_passes import CacheGroup, NodePasses, Nodes
from vllm_specext.engine.drafting.paths import PathInputs
from vllm_specext.engine.drafting.run_model import run_model
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.drafting.target import language_model_of
from vllm_specext.engine.drafting.tree_draft import hand_over, hand_over_chains
from vllm_specext.engine.drafting.tree_sizes import TreeSizes
from vllm_specext.engine.verification.attention import wrap_draft_layers
from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.kernels.tree_expansion import best_tokens
from vllm_specext.methods.moa.target_cache import TargetCache
from vllm_specext.tree.budget import TreeShape

CHUNK = 1024
"""Most tokens whose keys and values of all layers are collected at once: 128 KiB each for Llama 3 8B."""


class MoASpeculator(StepSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        drafted, requests = self.num_speculative_steps, self.max_num_reqs
        shape = vllm_config.speculative_config.tree or TreeShape(nodes=drafted, depth=drafted, top_k=1)
        self.sizes = TreeSizes.of(vllm_config, shape, grows_chains=True)
        self.root_slots: int = vllm_config.speculative_config.options.root_slots
        self.roots = Roots.buffers(requests, device)
        self.root_ids = torch.zeros(requests, dtype=torch.int64, device=device)
        self.paths = PathInputs.buffers(requests, shape.depth + 1, device)
        self.itself = torch.ones(1, 1, 1, dtype=torch.int32, device=device)
        """A row that sees itself alone, as bits."""
        self.passes: NodePasses[Features] = NodePasses(self._run, self.max_model_len, self._see)
        self.grower = TreeGrower(self._start, self.passes, self._best, self.roots, self.max_model_len, self.root_slots)
        self.draft_graphs: Graphs | None = None

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter: Any = load_eagle_model(target_model, self.vllm_config)
        drafter.draft_head = draft_head(drafter.lm_head, target_model, self.speculative_config.draft_vocabulary)
        layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        self.target_names = [name for name in layers if name in target_attn_layer_names]
        self.inferred_names: set[str] = set()
        if inference := self.draft_model_config.hf_config.target_layer_inference:
            model = language_model_of(target_model).model
            drafter.infer_target_layers(model.layers[-inference:], model.norm)
            self.inferred_names = set(self.target_names[-inference:])
        rows = [layer for name, layer in layers.items() if name not in target_attn_layer_names]
        rows += [layers[name] for name in self.inferred_names]
        wrap_draft_layers(rows, self.sizes.largest.depth)
        return drafter

    def set_attn(self, *args: Any) -> None:
        super().set_attn(*args)
        check_pages(self.attn_groups)
        rows = self.draft_attn_layer_names | self.inferred_names
        self.passes.groups = cache_groups(self.kv_cache_config, self.block_tables, rows)
        holding = cache_groups(self.kv_cache_config, self.block_tables, self.target_names)
        if len(holding) != 1:
            raise ConfigurationError(
                f"method 'moa' needs a target whose layers all cache alike, but they are in {len(holding)} groups."
            )
        self.read_attention, self.verified_attention = (
            layer.self_attn.attn for layer in (self.model.model.self_attention, self.model.model.cross_attention)
        )
        self.target_group = holding[0]
        self.groups_of_ours = {name: group for group in self.passes.groups for name in group.layers}
        layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        self.target_cache = TargetCache([layers[name] for name in self.target_names], self.dtype)

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        self.draft_graphs = draft_graphs(
            self.vllm_config, self.device, cudagraph_mode, self.sizes.captured(self.vllm_config)
        )

    def capture(self) -> None:
        assert self.draft_graphs is not None
        self.grower.capture(self.draft_graphs, self.sizes.captured(self.vllm_config), self._mask)

    def draft(self, step: Step) -> Drafts:
        if step.skips_attention or not step.attn_metadata:
            return self._rehearse(step)
        requests, shape = step.requests, self.sizes.shape_for(step.length, step.requests)
        self.roots.take(step.lengths() + self.root_slots, written=not step.dummy)
        self.root_ids[:requests] = step.newest_tokens()
        reads_paths = self._lay_out_paths(step)
        if not reads_paths:
            self._keep_rows(step)
        elif shape.nodes == 0:
            self._keep_paths(requests)
        if shape.nodes == 0:
            return self._hand_over_chains(step, Drafts(step.num_sampled.new_zeros(requests, 0)))
        grown = self.grower(requests, shape, reads_paths, step.longest, self.draft_graphs, self._mask)
        if shape.top_k == 1:
            return self._hand_over_chains(step, Drafts(grown.tokens))
        return Drafts((grown if step.dummy else hand_over(grown, step.batch, self.model_state)).tokens)

    def _hand_over_chains(self, step: Step, chains: Drafts) -> Drafts:
        if step.length and not step.dummy and self.steps is not None:
            hand_over_chains(chains.tokens.shape[1], step.length, step.batch, self.steps.trees)
        return chains

    def _start(self, requests: int, reads_paths: bool, longest: int) -> FirstLevel:
        if reads_paths:
            self._keep_paths(requests)
        roots = self.roots.part(requests)
        root = roots.starts[:, None] - self.root_slots
        nodes = Nodes(
            ids=self.root_ids[:requests, None],
            positions=root,
            slots=root,
            written=roots.written[:, None],
            prefix_lens=root[:, 0],
            visible=self.itself.expand(requests, 1, 1),
        )
        features, _ = self.passes(nodes, 1, longest + self.root_slots)
        return FirstLevel(*self._best(features, self.sizes.largest.top_k), features=None)

    def _best(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        tokens, log_probs = best_tokens(self.model.compute_logits(features), k)
        return self.model.draft_head.target_ids(tokens), log_probs

    def _run(self, nodes: Nodes, metadata: dict[str, Any] | None, slot_mappings: dict[str, Tensor] | None) -> Features:
        return run_model(self.model, self.vllm_config, nodes.ids, nodes.positions, metadata, slot_mappings), None

    def _see(self, group: CacheGroup, rows: TreeRows) -> dict[str, TreeRows]:
        """What the layers of a cache group see of a pass: the verified tokens alone where attention is to those, the
        last of which passes for the one node that the kernel asks for."""
        by_layer = dict.fromkeys(group.layers, rows)
        verified = self.verified_attention.layer_name
        if verified in by_layer:
            requests, width, _ = rows.visible.shape
            by_layer[verified] = replace(
                rows,
                prefix_lens=(self.roots.starts[:requests] - self.root_slots - 1).clamp(min=0),
                visible=self.itself.expand(requests, width, 1),
                num_nodes=1,
            )
        return by_layer

    def _mask(self, first: int, end: int) -> None:
        """Make requests ``first`` to ``end`` in the buffers padding: they write no keys and values, and nothing reads
        what they draft."""
        self.roots.mask(first, end, self.root_slots)
        self.paths.mask(first, end)

    def _lay_out_paths(self, step: Step) -> bool:
        """Put the accepted paths where ``_start`` expects them; false unless every request of the step verified a tree
        and the paths fit a pass."""
        paths = step.accepted_by_all(self.max_num_tokens)
        if paths is None:
            return False
        self.paths.take(step.batch.input_ids[paths.source], paths, step.num_sampled)
        return True

    def _keep_paths(self, requests: int) -> None:
        """Take in the accepted paths, from the buffers."""
        paths, written = self.paths.part(requests), self.roots.written[:requests, None]

        def kv_slots(group: CacheGroup) -> Tensor:
            return torch.where(written & paths.counts, group.kv_slots(paths.slots), PAD_SLOT_ID).flatten()

        ours = {name: kv_slots(self.groups_of_ours[name]) for name in self._our_names()}
        positions = paths.slots.clamp(max=self.max_model_len - 1).flatten()
        self._write_kv(paths.ids.flatten(), positions, kv_slots(self.target_group), ours)

    def _keep_rows(self, step: Step) -> None:
        """Take in all rows of the step, accepted ones first. The others are written too, for nobody to read: how many
        they are is known on the device only."""
        batch = step.batch
        ids = batch.input_ids if step.accepted is None else step.accepted.as_chain(batch.input_ids)
        target = step.slot_mappings[self.target_names[0]]
        for first in range(0, batch.num_tokens, CHUNK):
            part = slice(first, min(first + CHUNK, batch.num_tokens))
            ours = {name: step.slot_mappings[name][part] for name in self._our_names()}
            self._write_kv(ids[part], batch.positions[part], target[part], ours)

    def _write_kv(self, ids: Tensor, positions: Tensor, target_slots: Tensor, our_slots: Mapping[str, Tensor]) -> None:
        """Make the drafter's keys and values of tokens ``[T]``, given the KV slots where the target has its own and,
        by layer, those where the drafter's go."""
        made = self.model.keys_values(ids, positions, self.target_cache.gather(target_slots))
        for layer, (keys, values) in zip((self.read_attention, self.verified_attention), made, strict=True):
            shape = (-1, layer.num_kv_heads, layer.head_size)
            layer.impl.do_kv_cache_update(
                layer, keys.reshape(shape), values.reshape(shape), layer.kv_cache, our_slots[layer.layer_name]
            )

    def _our_names(self) -> tuple[str, str]:
        return self.read_attention.layer_name, self.verified_attention.layer_name

    def _rehearse(self, step: Step) -> Drafts:
        """Draft without caches what the schedule asks for, for vLLM to see how much memory it takes."""
        layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        target = TargetCache([layers[name] for name in self.target_names], self.dtype)
        rows = min(step.batch.num_tokens, CHUNK)
        ids = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.model.keys_values(ids, ids, target.nothing(rows, self.device))
        for requests, shape in self.sizes.of_schedule(self.speculative_config.schedule, self.max_num_reqs):
            self._mask(0, requests)
            self.grower.grow(requests, shape, reads_paths=False, longest=self.max_model_len)
        return Drafts(self.draft_tokens[: step.requests])
