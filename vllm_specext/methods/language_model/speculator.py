"""A language model with the target's tokenizer on vLLM's V2 runner, growing trees.

It reads the same tokens as the target, at the same positions, so that its layers have their place in vLLM's paged cache
and cached prefixes serve both. Where every request of the step verified a draft, it reads the accepted path and the
token sampled after it in one pass, from whose last row a tree grows. Otherwise it reads all rows of the step as the
target did, and then the sampled tokens.
Shapes: ``R`` requests, ``W`` rows of an accepted path and the root (levels + 2).
"""

from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.backends import set_model_tag
from vllm.config import VllmConfig, replace
from vllm.model_executor.model_loader import get_model

from vllm_specext.engine.drafting.cache_groups import drafters_groups, wrap_own_layers
from vllm_specext.engine.drafting.growth import Features, FirstLevel, LevelByLevel
from vllm_specext.engine.drafting.loading import for_loading
from vllm_specext.engine.drafting.node_passes import NodePasses, Nodes
from vllm_specext.engine.drafting.rooted_speculator import RootedSpeculator
from vllm_specext.engine.drafting.run_model import run_model
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.verification.layout import AcceptedPaths
from vllm_specext.kernels.best_tokens import best_tokens
from vllm_specext.tree.topology import Topology


class LanguageModelSpeculator(RootedSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device, rows_after_path=1)  # the root
        self.causal = Topology.chain(1, self.paths.width - 1, device).ancestors[0]
        """Rows of a path that each of them sees, as bits."""
        self.passes: NodePasses[Features] = NodePasses(self._run, self.max_model_len)
        self.by_level = LevelByLevel(self._start, self.passes, self._best, self.roots, self.root_slots)
        self.last_token: int = self.draft_model_config.get_vocab_size() - 1
        self.known: int = min(self.draft_model_config.get_vocab_size(), vllm_config.model_config.get_vocab_size())
        """Tokens that both models have; one of the two vocabularies may be padded."""

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        config = replace(
            for_loading(self.vllm_config),
            model_config=self.draft_model_config,
            quant_config=None,
            lora_config=None,
            parallel_config=replace(
                self.speculative_config.draft_parallel_config, rank=self.vllm_config.parallel_config.rank
            ),
        )
        with set_model_tag("draft_model"):
            drafter: nn.Module = get_model(vllm_config=config, prefix="draft_model")
        wrap_own_layers(self.vllm_config, target_attn_layer_names, self.sizes.largest.depth)
        return drafter

    def set_attn(self, *args: Any) -> None:
        super().set_attn(*args)
        self.passes.groups = drafters_groups(self, self.draft_attn_layer_names)

    def grow(self, growth: Growth) -> Grown:
        return self.by_level(growth)

    def _start(self, growth: Growth) -> FirstLevel:
        requests, read = growth.requests, self._read_paths if growth.reads_paths else self._read_roots
        predict = read(requests, growth.longest)
        return FirstLevel(
            *self._best(predict, self.sizes.largest.top_k, self.roots.sharpness[:requests]), features=None
        )

    def _read_roots(self, requests: int, longest: int) -> Tensor:
        """``[R, d]``"""
        nodes = self.roots.part(requests).nodes(self.root_ids[:requests], self.root_slots)
        return self.passes(nodes, 1, longest + self.root_slots)[0]

    def _read_paths(self, requests: int, longest: int) -> Tensor:
        """``[R, d]`` of the roots, after the accepted paths."""
        paths, width = self.paths.part(requests), self.paths.width
        nodes = paths.nodes(self.roots.written[:requests], self.causal)
        predict, _ = self.passes(nodes, width, longest + self.root_slots)
        return predict[torch.arange(requests, device=self.device) * width + paths.ends]

    def take_paths(self, step: Step, paths: AcceptedPaths) -> None:
        accepted = step.batch.input_ids[paths.source].long()
        ids = torch.cat((accepted, torch.zeros_like(accepted[:, :1])), dim=1)
        ids.scatter_(1, step.num_sampled[:, None].long(), self.root_ids[: step.requests, None])
        self.paths.take(ids, paths, step.num_sampled + 1)

    def keep_paths(self, requests: int) -> None:
        self._read_paths(requests, self.max_model_len)

    def keep_rows(self, step: Step) -> None:
        count = step.batch.num_tokens
        ids = step.batch.input_ids
        if step.accepted is not None:
            ids = step.accepted.as_chain(ids)
        self._model(ids[:count], step.batch.positions[:count], step.attn_metadata, step.slot_mappings)

    def rehearse_rows(self, step: Step) -> None:
        ids = torch.zeros(step.batch.num_tokens, dtype=torch.int64, device=self.device)
        self._model(ids, ids, None, None)

    def _best(self, features: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        return best_tokens(self.model.compute_logits(features)[:, : self.known], k, sharpness)

    def _run(self, nodes: Nodes, metadata: dict[str, Any] | None, slot_mappings: dict[str, Tensor] | None) -> Features:
        return self._model(nodes.ids, nodes.positions, metadata, slot_mappings), None

    def _model(
        self,
        ids: Tensor,
        positions: Tensor,
        metadata: dict[str, Any] | None,
        slot_mappings: dict[str, Tensor] | None,
    ) -> Tensor:
        known = ids.clamp(max=self.last_token)
        return run_model(self.model, self.vllm_config, known, positions, metadata, slot_mappings)
