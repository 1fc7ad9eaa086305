"""PARD's drafters (arXiv 2504.18583) on vLLM's V2 runner, drafting trees.

They are small language models, trained to give all positions of a draft in one pass, by rows with mask tokens after the
last sampled token (``engine/drafting/mask_rows.py``). Where every request of the step verified a draft, the accepted
path is read in the same pass.
Shapes: ``R`` requests, ``W`` rows of an accepted path and the root, ``M`` rows with mask tokens (levels - 1).
"""

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

from vllm_specext.engine.drafting.mask_rows import MaskRows, best_of, grown_of
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.methods.language_model.speculator import LanguageModelSpeculator


class PardSpeculator(LanguageModelSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        token = get_parallel_drafting_token_id(self.draft_model_config.hf_config)
        self.mask_rows = MaskRows.of(token, self.paths.width + self.sizes.largest.depth, device)

    def grow(self, growth: Growth) -> Grown:
        masks = growth.shape.depth - 1
        if growth.reads_paths and growth.requests * (self.paths.width + masks) <= self.max_num_tokens:
            features = self._after_paths(growth, masks)
        else:
            if growth.reads_paths:
                self._read_paths(growth.requests, growth.longest)
            features = self._after_text(growth, masks)
        sharpness = self.roots.sharpness[: growth.requests]
        return grown_of(best_of(features, self.sizes.largest.top_k, sharpness, self._best), growth.shape)

    def _after_paths(self, growth: Growth, masks: int) -> Tensor:
        """``[R, 1 + M, d]``, with the accepted paths read in the same pass."""
        paths = self.paths.part(growth.requests)
        nodes = self.mask_rows.after_paths(paths, self.roots.written[: growth.requests], masks)
        predict, _ = self.passes(nodes, self.paths.width + masks, growth.longest + self.root_slots + masks)
        return predict[self.mask_rows.drafting(paths, masks)]

    def _after_text(self, growth: Growth, masks: int) -> Tensor:
        """The same from the roots on, of as many requests at a time as a pass holds."""
        rows = 1 + masks
        together = max(1, self.max_num_tokens // rows)
        passed = []
        for first in range(0, growth.requests, together):
            part = slice(first, min(first + together, growth.requests))
            starts = self.roots.starts[part] - self.root_slots
            nodes = self.mask_rows.after(self.root_ids[part, None], starts, self.roots.written[part], masks)
            predict, _ = self.passes(nodes, rows, growth.longest + self.root_slots + masks, first)
            passed.append(predict.view(len(starts), rows, -1))
        return torch.cat(passed)
