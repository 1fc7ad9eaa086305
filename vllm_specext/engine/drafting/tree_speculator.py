"""Draft trees of a drafter over the target's hidden states.

The first level is drafted in one of two ways. Where every request of the step verified a draft, the drafter reads the
accepted paths only, and that is part of the growth. Otherwise vLLM's own first pass reads all rows of the step,
accepted paths first. Where the schedule asks for no more nodes than a tree has levels, vLLM drafts chains; on a CPU,
where passes are recorded, a chain grows as a tree of width 1.
Shapes: ``R`` requests, ``W`` rows of an accepted path (levels + 1), ``d`` hidden size.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode

from vllm_specext.cpu_runner.recording import records_passes
from vllm_specext.engine.drafting.cache_groups import drafters_groups, wrap_own_layers
from vllm_specext.engine.drafting.chain_graphs import schedule_of_chains
from vllm_specext.engine.drafting.graphs import draft_graphs
from vllm_specext.engine.drafting.growth import Features, FirstLevel, LevelByLevel
from vllm_specext.engine.drafting.hidden_states import ChainSpeculator, HiddenStateDrafter
from vllm_specext.engine.drafting.latent_rows import seen_by
from vllm_specext.engine.drafting.node_passes import NodePasses, Nodes
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.engine.drafting.tree_grower import GrowthInputs, TreeGrower
from vllm_specext.engine.drafting.tree_sizes import TreeSizes
from vllm_specext.engine.verification.layout import AcceptedPaths
from vllm_specext.kernels.best_tokens import best_tokens
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.topology import Topology


def hidden_state_speculator(
    vllm_config: VllmConfig, device: torch.device, drafter: HiddenStateDrafter
) -> StepSpeculator:
    """The speculator of a drafter over hidden states: of trees where the configuration has them, or of chains."""
    grows = vllm_config.speculative_config.tree is not None or records_passes(vllm_config)
    return (TreeSpeculator if grows else ChainSpeculator)(vllm_config, device, drafter)


class TreeSpeculator(ChainSpeculator):
    def __init__(
        self, vllm_config: VllmConfig, device: torch.device, drafter: HiddenStateDrafter, grows_chains: bool = False
    ) -> None:
        """``grows_chains``: whether vLLM's own drafting of chains is of no use for the drafter."""
        super().__init__(vllm_config, device, drafter)
        chain = TreeShape(nodes=self.num_speculative_steps, depth=self.num_speculative_steps, top_k=1)
        shape = vllm_config.speculative_config.tree or chain
        grows_chains = grows_chains or records_passes(vllm_config)
        sizes = self.sizes = TreeSizes.of(vllm_config, shape, grows_chains)
        self.causal = Topology.chain(1, shape.depth, device).ancestors[0]
        """Rows of an accepted path that each of them sees, as bits."""
        inputs = self.inputs = GrowthInputs.buffers(vllm_config, shape.depth + 1, device)
        self.roots, self.paths, self.root_slots = inputs.roots, inputs.paths, inputs.root_slots
        first = self.max_num_reqs, shape.top_k
        self.first_tokens = torch.zeros(first, dtype=torch.int64, device=device)
        self.first_log_probs = torch.zeros(first, dtype=torch.float32, device=device)
        self.passes: NodePasses[Features] = NodePasses(self._run, self.max_model_len)
        self.by_level = LevelByLevel(self._start, self.passes, self._best, self.roots, self.root_slots)
        self.grower = TreeGrower(self.grow, inputs, sizes, self.max_model_len)
        self.only_reads = False
        """True while vLLM's drafting runs for a step that drafts nothing: ``sample_draft`` then leaves out the LM head.
        vLLM's hook has no argument for it."""

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter = super().load_draft_model(target_model, target_attn_layer_names)
        wrap_own_layers(self.vllm_config, target_attn_layer_names, self.sizes.largest.depth)
        return drafter

    def set_attn(self, model_state: Any, *args: Any) -> None:
        super().set_attn(model_state, *args)
        self.passes.groups = drafters_groups(self, self.draft_attn_layer_names)
        self.passes.see = seen_by(self.vllm_config, self.draft_attn_layer_names)

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        with schedule_of_chains(self.speculative_config, self.sizes):
            super().init_cudagraph_manager(cudagraph_mode)
        self.draft_graphs = draft_graphs(
            self.vllm_config, self.device, cudagraph_mode, self.sizes.captured(self.vllm_config)
        )

    def capture(self) -> None:
        """Graphs of vLLM's first pass, of decoding for the sizes that are chains, and of growing trees."""
        with schedule_of_chains(self.speculative_config, self.sizes):
            super().capture()
        self.grower.capture(self.draft_graphs, self.vllm_config)

    def draft(self, step: Step) -> Drafts:
        shape = self.sizes.shape_for(step.length, step.requests)
        if step.skips_attention:
            return self._rehearse(step, shape)
        if self.sizes.grown(step.length, step.requests) is None:
            return self._draft_chains(step, shape)
        return self.hand_over(step, self._grow(step, shape), shape.top_k)

    def _grow(self, step: Step, shape: TreeShape) -> TreeDraft:
        self.sharpen(step, self.roots, shape.top_k)
        paths = self._paths(step) if self.inputs.holds_paths(step.requests) else None
        if paths is None:
            self._read_rows(step, 1)
        else:
            self._lay_out(paths, step)
        self.roots.take(step.lengths() + self.root_slots, written=not step.dummy)
        return self.grower(step, shape, paths is not None, self.draft_graphs)

    def _paths(self, step: Step) -> AcceptedPaths | None:
        if self.steps is None:
            return AcceptedPaths.of_chains(step.batch, self.paths.width)
        return step.accepted_by_all(self.paths.width)

    def _draft_chains(self, step: Step, shape: TreeShape) -> Drafts:
        return self.hand_over_chains(step, Drafts(self._read_rows(step, shape.nodes)[:, : shape.nodes]))

    def _read_rows(self, step: Step, length: int) -> Tensor:
        """vLLM's drafting of ``length`` tokens, on the rows of the step as chains have them. With none, the drafter's
        cache is kept, and a pass that is no graph leaves out the LM head."""
        features = self.drafter.features(self.model, step, None)
        if step.accepted is not None:
            features = step.accepted.as_chain(features)
            step = replace(step, batch=replace(step.batch, input_ids=step.accepted.as_chain(step.batch.input_ids)))
        self.only_reads = length == 0
        try:
            return self.draft_chains(step, features, length)
        finally:
            self.only_reads = False

    def _lay_out(self, paths: AcceptedPaths, step: Step) -> None:
        """Put the accepted paths where ``_read_paths`` expects them. A row's token is the one after its feature's."""
        following = step.batch.input_ids[paths.source.roll(-1, dims=1)]
        drawn = step.last_sampled.view(-1)[step.batch.idx_mapping].to(following.dtype)[:, None]
        is_last = self.paths.place == (step.num_sampled - 1)[:, None]
        self.paths.take(torch.where(is_last, drawn, following), paths, step.num_sampled)
        self.hidden_states[: paths.source.numel()] = self.drafter.features(self.model, step, paths.source.flatten())

    def sample_draft(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """vLLM's hook: the best token of each row. The runners-up are kept for a tree's first level, in place: a
        captured graph ends here, and the levels go on outside."""
        if self.only_reads:
            return self.first_tokens[: len(hidden_states), 0]
        sharpness = self.roots.sharpness[: len(hidden_states)]
        tokens, log_probs = self._best(hidden_states, self.sizes.largest.top_k, sharpness)
        self.first_tokens[: len(tokens)] = tokens
        self.first_log_probs[: len(tokens)] = log_probs
        return tokens[:, 0]

    def grow(self, growth: Growth) -> Grown:
        """As ``tree_grower.Grow``."""
        return self.by_level(growth)

    def _start(self, growth: Growth) -> FirstLevel:
        requests = growth.requests
        if growth.reads_paths:
            return self._read_paths(requests, growth.longest)
        features = self.hidden_states[:requests]
        return FirstLevel(self.first_tokens[:requests], self.first_log_probs[:requests], features)

    def _read_paths(self, requests: int, longest: int) -> FirstLevel:
        paths, width = self.paths.part(requests), self.paths.width
        features = self.hidden_states[: requests * width].view(requests, width, -1)
        nodes = paths.nodes(self.roots.written[:requests], self.causal, features)
        rows = torch.arange(requests, device=self.device) * width + paths.ends
        self.drafter.ask_for(self.model, rows)
        predict, regress = self.passes(nodes, width, longest)
        self.drafter.ask_for(self.model, None)
        assert regress is not None
        tokens, log_probs = self._best(predict[rows], self.sizes.largest.top_k, self.roots.sharpness[:requests])
        return FirstLevel(tokens, log_probs, regress[rows])

    def _best(self, features: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        tokens, log_probs = best_tokens(self.model.compute_logits(features), k, sharpness)
        return self.drafter.target_ids(self.model, tokens), log_probs

    def _run(self, nodes: Nodes, metadata: dict[str, Any] | None, slot_mappings: dict[str, Tensor] | None) -> Features:
        count = nodes.ids.numel()
        self.input_buffers.input_ids[:count] = nodes.ids.flatten()
        self.input_buffers.positions[:count] = nodes.positions.flatten()
        if nodes.features is not None:
            self.hidden_states[:count] = nodes.features.reshape(count, -1)
        return self._run_model(count, metadata, slot_mappings, num_tokens_across_dp=None)

    def _rehearse(self, step: Step, shape: TreeShape) -> Drafts:
        """Draft without caches what the schedule asks for, for vLLM to see how much memory it takes."""
        self._read_rows(step, 1 if shape.top_k > 1 else shape.nodes)
        self.grower.rehearse(self.speculative_config.schedule, self.max_num_reqs)
        return Drafts(self.draft_tokens[: step.requests])
