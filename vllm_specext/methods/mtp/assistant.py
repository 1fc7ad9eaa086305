"""Trees of Gemma 4's assistants, which vLLM's `mtp` drafts chains with.

An assistant has no keys and values of its own: all its layers read the target's, of the last layer of their kind that
has some. So there is nothing to take in of a text, and no node sees another one. All stand at the position of the last
sampled token and see the tokens before it; what a node knows of its ancestors, it reads from the features that its
parent's row gave. Transformers has it so; vLLM's own chains stand at the position before.
Shapes: ``R`` requests, ``d`` hidden size of the target.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.config import replace as replace_config
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.v1.worker.gpu.spec_decode.gemma4.speculator import Gemma4Speculator

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.drafting.cache_groups import drafters_groups, wrap_own_layers
from vllm_specext.engine.drafting.growth import Features, FirstLevel, LevelByLevel
from vllm_specext.engine.drafting.loading import for_loading
from vllm_specext.engine.drafting.node_passes import CacheGroup, NodePasses, Nodes
from vllm_specext.engine.drafting.rooted_speculator import RootedSpeculator
from vllm_specext.engine.drafting.run_model import run_model
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.verification.layout import AcceptedPaths
from vllm_specext.kernels.best_tokens import best_tokens
from vllm_specext.kernels.tree_attention import TreeRows


class AssistantSpeculator(RootedSpeculator, Gemma4Speculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        width = vllm_config.model_config.get_hidden_size()
        self.root_features = torch.zeros(self.max_num_reqs, width, dtype=self.dtype, device=device)
        """The target's hidden states that decided the last sampled tokens, ``[R, d]``."""
        self.passes: NodePasses[Features] = NodePasses(self._run, self.max_model_len, self._see)
        self.by_level = LevelByLevel(self._start, self.passes, self._best, self.roots, self.root_slots)

    def _create_draft_vllm_config(self) -> VllmConfig:
        """vLLM's hook."""
        model = self.speculative_config.draft_model_config
        config: VllmConfig = replace_config(for_loading(self.vllm_config), model_config=model)
        return config

    @replaces(
        "vllm.model_executor.models.gemma4_mtp.Gemma4MultiTokenPredictor.embed_tokens",
        name="embeddings of assistants",
        why="where requests have adapters (LoRA), vLLM gives an assistant the target's embeddings with these",
        how="set to the target's embeddings without adapters, as vLLM does for EAGLE's drafters",
        upstream="none known",
        until="vLLM does so for assistants",
        kind="set",
    )
    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter: Any = super().load_draft_model(target_model, target_attn_layer_names)
        embeddings = drafter.model.embed_tokens
        if isinstance(embeddings, BaseLayerWithLoRA):  # which asks whose a row of the target's step is
            drafter.model.embed_tokens = embeddings.base_layer
        wrap_own_layers(self.vllm_config, target_attn_layer_names, self.sizes.largest.depth)
        return drafter

    def that_takes_no_weights(self) -> str | None:
        """vLLM makes its output layer of the embedding in its file. Afterwards the target's stands in that one's place,
        so that another file's would be left out."""
        return "that is an assistant"

    def set_attn(self, *args: Any) -> None:
        super().set_attn(*args)
        self.passes.groups = drafters_groups(self, self.draft_attn_layer_names)

    def keep_rows(self, step: Step) -> None:
        rows = step.batch.query_start_loc[1 : step.requests + 1] - 1 - step.num_rejected[: step.requests]
        rows = rows.clamp(min=0)
        if step.accepted is not None:
            order = torch.arange(step.batch.num_tokens, device=self.device)
            rows = step.accepted.as_chain(order)[rows]
        self._take(step, rows)

    def take_paths(self, step: Step, paths: AcceptedPaths) -> None:
        last = (step.num_sampled[: step.requests, None].long() - 1).clamp(min=0)
        self._take(step, paths.source.gather(1, last)[:, 0])

    def _take(self, step: Step, rows: Tensor) -> None:
        self.root_features[: step.requests] = step.last_hidden_states[rows]

    def keep_paths(self, requests: int) -> None:
        """The target keeps them."""

    def rehearse_rows(self, step: Step) -> None:
        """Nothing is computed of them."""

    def grow(self, growth: Growth) -> Grown:
        return self.by_level(growth)

    def _start(self, growth: Growth) -> FirstLevel:
        requests = growth.requests
        nodes = self.roots.part(requests).nodes(self.root_ids[:requests], self.root_slots)
        features = self.root_features[:requests, None]
        predict, regress = self.passes(replace(nodes, features=features), 1, growth.longest + self.root_slots)
        best = self._best(predict, self.sizes.largest.top_k, self.roots.sharpness[:requests])
        return FirstLevel(*best, features=regress)

    def _best(self, features: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        return best_tokens(self.model.compute_logits(features), k, sharpness)

    def _see(self, group: CacheGroup, rows: TreeRows) -> dict[str, TreeRows]:
        """The tokens before the last sampled one."""
        return dict.fromkeys(group.layers, self.roots.verified_only(rows, self.root_slots))

    def _positions(self, requests: int) -> Tensor:
        """Of the last sampled tokens, ``[R]``."""
        return self.roots.starts[:requests] - self.root_slots

    def _run(self, nodes: Nodes, metadata: dict[str, Any] | None, slot_mappings: dict[str, Tensor] | None) -> Features:
        requests, width = nodes.ids.shape
        positions = self._positions(requests)[:, None].expand(-1, width).clamp(max=self.max_model_len - 1)
        assert nodes.features is not None
        features = nodes.features.reshape(positions.numel(), -1)
        given = nodes.ids, positions, metadata, slot_mappings
        predict, regress = run_model(self.model, self.vllm_config, *given, hidden_states=features)
        return predict, regress
