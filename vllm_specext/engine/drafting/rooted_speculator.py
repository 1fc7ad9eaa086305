"""Speculators whose drafter has read the text up to the last sampled token when it begins to draft.

After every step the drafter takes in what was verified: the accepted paths alone where every request of the step
verified a draft, which is then part of the growth and its graph, or all rows of the step. Then drafts grow from the
last sampled tokens, the roots, each at its own KV slot before the slots of the drafted nodes. A chain is a tree of
width 1.
Shapes: ``R`` requests, ``W`` rows of an accepted path (levels + 1).
"""

import torch
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode

from vllm_specext.engine.drafting.graphs import draft_graphs
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.drafting.tree_grower import GrowthInputs, TreeGrower
from vllm_specext.engine.drafting.tree_sizes import TreeSizes
from vllm_specext.engine.verification.layout import AcceptedPaths
from vllm_specext.tree.budget import TreeShape


class RootedSpeculator(StepSpeculator):
    """The common part; a method says how its drafter takes in rows and paths, and how drafts grow."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, rows_after_path: int = 0) -> None:
        """``rows_after_path``: rows of a request beside its accepted path's that are read together with them."""
        super().__init__(vllm_config, device)
        drafted, requests = self.num_speculative_steps, self.max_num_reqs
        shape = vllm_config.speculative_config.tree or TreeShape(nodes=drafted, depth=drafted, top_k=1)
        self.sizes = TreeSizes.of(vllm_config, shape, grows_chains=True)
        self.path_width = shape.depth + 1
        inputs = self.inputs = GrowthInputs.buffers(vllm_config, self.path_width + rows_after_path, device)
        self.roots, self.paths, self.root_slots = inputs.roots, inputs.paths, inputs.root_slots
        self.root_ids = torch.zeros(requests, dtype=torch.int64, device=device)
        """The last sampled tokens, ``[R]``."""
        self.grower = TreeGrower(self.grow, inputs, self.sizes, self.max_model_len)

    def keep_rows(self, step: Step) -> None:
        """Take in all rows of the step, accepted ones first. The others are taken in too, for nobody to read: how many
        they are is known on the device only."""
        raise NotImplementedError

    def take_paths(self, step: Step, paths: AcceptedPaths) -> None:
        """Put the accepted paths into the buffers that ``keep_paths`` reads."""
        self.paths.take(step.batch.input_ids[paths.source], paths, step.num_sampled)

    def keep_paths(self, requests: int) -> None:
        """Take in the accepted paths, from the buffers."""
        raise NotImplementedError

    def grow(self, growth: Growth) -> Grown:
        """As ``tree_grower.Grow``."""
        raise NotImplementedError

    def rehearse_rows(self, step: Step) -> None:
        """Compute what ``keep_rows`` does without caches, for vLLM to see how much memory it takes."""
        raise NotImplementedError

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        self.draft_graphs = draft_graphs(
            self.vllm_config, self.device, cudagraph_mode, self.sizes.captured(self.vllm_config)
        )

    def capture(self) -> None:
        self.grower.capture(self.draft_graphs, self.vllm_config)

    def draft(self, step: Step) -> Drafts:
        if step.skips_attention or not step.attn_metadata:
            return self._rehearse(step)
        requests, shape = step.requests, self.sizes.shape_for(step.length, step.requests)
        self.roots.take(step.lengths() + self.root_slots, written=not step.dummy)
        self.root_ids[:requests] = step.newest_tokens()
        self.sharpen(step, self.roots, shape.top_k)
        paths = step.accepted_by_all(self.path_width) if self.inputs.holds_paths(requests) else None
        if paths is None:
            self.keep_rows(step)
        else:
            self.take_paths(step, paths)
        if shape.nodes == 0:
            if paths is not None:
                self.keep_paths(requests)
            return self.hand_over_chains(step, Drafts(step.num_sampled.new_zeros(requests, 0)))
        grown = self.grower(step, shape, paths is not None, self.draft_graphs)
        return self.hand_over(step, grown, shape.top_k)

    def _rehearse(self, step: Step) -> Drafts:
        """Draft what the schedule asks for, for vLLM to see how much memory it takes."""
        self.rehearse_rows(step)
        self.grower.rehearse(self.speculative_config.schedule, self.max_num_reqs)
        return Drafts(self.draft_tokens[: step.requests])
