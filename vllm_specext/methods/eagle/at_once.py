"""vLLM's P-EAGLE drafters (arXiv 2602.01469) on its V2 runner, drafting trees.

They are EAGLE-3's drafters, trained to give all positions of a draft in one pass, by rows with mask tokens
(``engine/drafting/mask_rows.py``). Such a row reads a learned feature in the place of the target's, which is not known
yet.
Where every request of the step verified a draft, the accepted paths are read in the same pass. Otherwise vLLM's own
pass reads all rows of the step first.
Shapes: ``R`` requests, ``W`` rows of an accepted path, ``M`` rows with mask tokens (levels - 1), ``d`` hidden size.
"""

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

from vllm_specext.engine.drafting.marginals import Best, best_of, grown_of
from vllm_specext.engine.drafting.mask_rows import MaskRows
from vllm_specext.engine.drafting.request_parts import request_parts
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.tree_speculator import TreeSpeculator
from vllm_specext.methods.eagle.speculator import Eagle3Drafter


class PEagleDrafter(Eagle3Drafter):
    def load(self, target_model: Any, vllm_config: VllmConfig) -> nn.Module:
        own = copy(vllm_config)
        own.speculative_config = vllm_config.speculative_config.for_drafting_at_once()
        return super().load(target_model, own)


class PEagleSpeculator(TreeSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device, PEagleDrafter(), grows_chains=True)
        token = get_parallel_drafting_token_id(self.draft_model_config.hf_config)
        self.mask_rows = MaskRows.of(token, self.paths.width + self.sizes.largest.depth, device)
        self.mask_feature = torch.zeros(0, device=device)
        """What rows with mask tokens read in the place of the target's states, ``[d]``, once the drafter is loaded."""

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter: Any = super().load_draft_model(target_model, target_attn_layer_names)
        self.mask_feature = drafter.combine_hidden_states(drafter.mask_hidden.to(self.dtype)).view(-1)
        return drafter

    def grow(self, growth: Growth) -> Grown:
        masks = growth.shape.depth - 1
        if growth.reads_paths and growth.requests * (self.paths.width + masks) <= self.max_num_tokens:
            best = self._after_paths(growth, masks)
        else:
            best = self._after_text(growth, masks)
        return grown_of(best, growth.shape)

    def _after_paths(self, growth: Growth, masks: int) -> Best:
        """Read the accepted paths and draft after them, in one pass."""
        requests, width = growth.requests, self.paths.width
        paths = self.paths.part(requests)
        features = self.hidden_states[: requests * width].view(requests, width, -1)
        features = torch.cat((features, self.mask_feature.expand(requests, masks, -1)), dim=1)
        nodes = self.mask_rows.after_paths(paths, self.roots.written[:requests], masks, features)
        predict, _ = self.passes(nodes, width + masks, growth.longest + masks)
        return self._best_of(predict[self.mask_rows.drafting(paths, masks)])

    def _after_text(self, growth: Growth, masks: int) -> Best:
        """Draft after what has been read, which gives the first position. vLLM's pass keeps of it what the largest tree
        needs."""
        first, requests = self._start(growth), growth.requests
        best = [(first.tokens[:, None], first.log_probs[:, None])]
        if masks:
            parts = request_parts(requests, masks, self.max_num_tokens)
            best.append(self._best_of(torch.cat([self._read_masks(part, growth.longest, masks) for part in parts])))
        tokens, log_probs = zip(*best, strict=True)
        return torch.cat(tokens, dim=1), torch.cat(log_probs, dim=1)

    def _read_masks(self, part: slice, longest: int, masks: int) -> Tensor:
        """What rows with mask tokens give of a ``part`` of the requests, ``[requests, M, d]``."""
        requests = part.stop - part.start
        no_text = self.paths.ids[part, :0]
        features = self.mask_feature.expand(requests, masks, -1)
        nodes = self.mask_rows.after(no_text, self.roots.starts[part], self.roots.written[part], masks, features)
        predict, _ = self.passes(nodes, masks, longest + masks, part.start)
        return predict.view(requests, masks, -1)

    def _best_of(self, features: Tensor) -> Best:
        return best_of(features, self.sizes.largest.top_k, self.roots.sharpness[: len(features)], self._best)
