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
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.worker.gpu.spec_decode.eagle.utils import load_eagle_model

from vllm_specext.engine.clients.drafts import ClientDrafts
from vllm_specext.engine.drafting.cache_groups import cache_groups, drafters_groups, wrap_own_layers
from vllm_specext.engine.drafting.draft_head import draft_head
from vllm_specext.engine.drafting.growth import Features, FirstLevel, LevelByLevel
from vllm_specext.engine.drafting.node_passes import CacheGroup, NodePasses, Nodes
from vllm_specext.engine.drafting.rooted_speculator import RootedSpeculator
from vllm_specext.engine.drafting.run_model import run_model
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.drafting.target import language_model_of
from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.best_tokens import best_tokens
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.methods.moa.target_cache import TargetCache

CHUNK = 1024
"""Most tokens whose keys and values of all layers are collected at once: 128 KiB each for Llama 3 8B."""


class MoASpeculator(RootedSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.passes: NodePasses[Features] = NodePasses(self._run, self.max_model_len, self._see)
        self.by_level = LevelByLevel(self._start, self.passes, self._best, self.roots, self.root_slots)
        self.clients: ClientDrafts | None = None

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter: Any = load_eagle_model(target_model, self.vllm_config)
        drafter.draft_head = draft_head(drafter.lm_head, target_model, self.speculative_config)
        layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        self.target_names = [name for name in layers if name in target_attn_layer_names]
        self.inferred_names: set[str] = set()
        if inference := self.draft_model_config.hf_config.target_layer_inference:
            model = language_model_of(target_model).model
            drafter.infer_target_layers(model.layers[-inference:], model.norm)
            self.inferred_names = set(self.target_names[-inference:])
        wrap_own_layers(self.vllm_config, target_attn_layer_names, self.sizes.largest.depth, self.inferred_names)
        return drafter

    def set_attn(self, *args: Any) -> None:
        super().set_attn(*args)
        self.passes.groups = drafters_groups(self, self.draft_attn_layer_names | self.inferred_names)
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
        if self.speculative_config.options.client_drafts:
            self._serve_clients()

    def _serve_clients(self) -> None:
        layer = self.verified_attention
        verified, group = TargetCache([layer], self.dtype), self.groups_of_ours[layer.layer_name]

        def read(place: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
            slots = tokens.to(self.device)[None]
            kv_slots = group.kv_slots(slots, torch.ones_like(slots, dtype=torch.bool), group.num_slots, place)
            keys, values = verified.gather(kv_slots)[:, 0].unbind(2)
            return keys, values

        levels = self.speculative_config.levels
        self.clients = ClientDrafts(layer.num_kv_heads, layer.head_size, levels, read)
        self.model_state.tell(self.clients.add)

    def draft(self, step: Step) -> Drafts:
        if self.clients is None or step.dummy:
            return super().draft(step)
        return self.clients.after(super().draft(self.clients.for_others(step)), step, self)

    def grow(self, growth: Growth) -> Grown:
        return self.by_level(growth)

    def _start(self, growth: Growth) -> FirstLevel:
        requests = growth.requests
        if growth.reads_paths:
            self.keep_paths(requests)
        nodes = self.roots.part(requests).nodes(self.root_ids[:requests], self.root_slots)
        features, _ = self.passes(nodes, 1, growth.longest + self.root_slots)
        return FirstLevel(
            *self._best(features, self.sizes.largest.top_k, self.roots.sharpness[:requests]), features=None
        )

    def _best(self, features: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        tokens, log_probs = best_tokens(self.model.compute_logits(features), k, sharpness)
        return self.model.draft_head.target_ids(tokens), log_probs

    def _run(self, nodes: Nodes, metadata: dict[str, Any] | None, slot_mappings: dict[str, Tensor] | None) -> Features:
        return run_model(self.model, self.vllm_config, nodes.ids, nodes.positions, metadata, slot_mappings), None

    def _see(self, group: CacheGroup, rows: TreeRows) -> dict[str, TreeRows]:
        """What the layers of a cache group see of a pass: the verified tokens alone where attention is to those."""
        by_layer = dict.fromkeys(group.layers, rows)
        verified = self.verified_attention.layer_name
        if verified in by_layer:
            by_layer[verified] = self.roots.verified_only(rows, self.root_slots)
        return by_layer

    def keep_paths(self, requests: int) -> None:
        paths, written = self.paths.part(requests), self.roots.written[:requests, None]

        def kv_slots(group: CacheGroup) -> Tensor:
            return group.kv_slots(paths.slots, written & paths.counts, self.max_model_len)

        ours = {name: kv_slots(self.groups_of_ours[name]) for name in self._our_names()}
        positions = paths.slots.clamp(max=self.max_model_len - 1).flatten()
        self._write_kv(paths.ids.flatten(), positions, kv_slots(self.target_group), ours)

    def keep_rows(self, step: Step) -> None:
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

    def rehearse_rows(self, step: Step) -> None:
        layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        target = TargetCache([layers[name] for name in self.target_names], self.dtype)
        rows = min(step.batch.num_tokens, CHUNK)
        ids = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.model.keys_values(ids, ids, target.nothing(rows, self.device))
