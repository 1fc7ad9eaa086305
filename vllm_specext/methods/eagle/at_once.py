"""vLLM's P-EAGLE drafters (arXiv 2602.01469) on its V2 runner, drafting trees.

They are EAGLE-3's drafters, trained to give all positions of a draft in one pass. Such a pass goes on after the text
with a row for each further position: a mask token, and a learned feature in the place of the target's, which is not
known yet. A row sees the text and the rows before it. Row ``j`` gives the distribution of the ``j``-th token, without
knowing what is drafted at the others. So the most likely nodes of all paths are found at once (``tree/marginals.py``).
The rows' own keys and values lie in the KV slots after the accepted prefix, and are overwritten by the next step.
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

from vllm_specext.engine.drafting.node_passes import Nodes
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.engine.drafting.tree_speculator import TreeSpeculator
from vllm_specext.methods.eagle.speculator import Eagle3Drafter
from vllm_specext.tree.marginals import best_tree
from vllm_specext.tree.topology import Topology

Best = tuple[Tensor, Tensor]
"""The most likely tokens of positions and their log-probabilities, ``[R, positions, k]``."""


class PEagleDrafter(Eagle3Drafter):
    def load(self, target_model: Any, vllm_config: VllmConfig) -> nn.Module:
        own = copy(vllm_config)
        own.speculative_config = vllm_config.speculative_config.for_drafting_at_once()
        return super().load(target_model, own)


class PEagleSpeculator(TreeSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device, PEagleDrafter(), grows_chains=True)
        self.mask_token = get_parallel_drafting_token_id(self.draft_model_config.hf_config)
        self.mask_feature = torch.zeros(0, device=device)
        """What rows with mask tokens read in the place of the target's states, ``[d]``, once the drafter is loaded."""
        levels = self.sizes.largest.depth
        self.in_order = Topology.chain(1, self.paths.width + levels, device).ancestors[0]
        """Rows of a pass that each of them sees where they are a text, as bits."""

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter: Any = super().load_draft_model(target_model, target_attn_layer_names)
        self.mask_feature = drafter.combine_hidden_states(drafter.mask_hidden.to(self.dtype)).view(-1)
        return drafter

    def grow(self, growth: Growth) -> Grown:
        requests, shape = growth.requests, growth.shape
        masks = shape.depth - 1
        if growth.reads_paths and requests * (self.paths.width + masks) <= self.max_num_tokens:
            best = self._after_paths(growth, masks)
        else:
            best = self._after_text(growth, masks)
        # Of a chain one token of each position is wanted; vLLM's first pass keeps what the largest tree needs.
        tokens, log_probs = (found[..., : 1 if shape.top_k == 1 else None] for found in best)
        nodes, topology, expected = best_tree(tokens, log_probs, shape.nodes)
        drafted = min(shape.depth, shape.nodes)
        return {shape.depth: TreeDraft(nodes, topology, lambda: tokens[:, :, 0], drafted, expected=expected)}

    def _after_paths(self, growth: Growth, masks: int) -> Best:
        """Read the accepted paths and draft after them, in one pass."""
        requests, width = growth.requests, self.paths.width
        paths, written = self.paths.part(requests), self.roots.written[:requests, None]
        last, count = paths.ends[:, None], width + masks
        features = self.hidden_states[: requests * width].view(requests, width, -1)
        # A bit stands for the KV slot so many after the first row's: a mask token's is after the path's last one.
        place = torch.cat((torch.minimum(paths.place, last), last + 1 + self._places(masks)), dim=1)
        slots = torch.cat((paths.slots, self._slots(slice(requests), masks)), dim=1)
        nodes = Nodes(
            ids=torch.cat((paths.ids, self._mask_tokens(requests, masks)), dim=1),
            positions=slots,
            slots=slots,
            written=torch.cat((written & paths.counts, written.expand(-1, masks)), dim=1),
            prefix_lens=paths.starts,
            visible=self.in_order[place],
            features=torch.cat((features, self.mask_feature.expand(requests, masks, -1)), dim=1),
        )
        predict, _ = self.passes(nodes, count, growth.longest + masks)
        drafts = torch.cat((last, width + self._places(masks).expand(requests, -1)), dim=1)
        rows = torch.arange(requests, device=self.device)[:, None] * count + drafts
        return self._best_of(predict[rows])

    def _after_text(self, growth: Growth, masks: int) -> Best:
        """Draft after what has been read, which gives the first position."""
        first, requests = self._start(growth), growth.requests
        best = [(first.tokens[:, None], first.log_probs[:, None])]
        if masks:
            together = max(1, self.max_num_tokens // masks)
            passed = [
                self._read_masks(at, min(together, requests - at), growth.longest, masks)
                for at in range(0, requests, together)
            ]
            best.append(self._best_of(torch.cat(passed)))
        tokens, log_probs = zip(*best, strict=True)
        return torch.cat(tokens, dim=1), torch.cat(log_probs, dim=1)

    def _read_masks(self, first: int, requests: int, longest: int, masks: int) -> Tensor:
        """What rows with mask tokens give of so many ``requests`` from the ``first`` on, ``[requests, M, d]``."""
        part = slice(first, first + requests)
        slots = self._slots(part, masks)
        nodes = Nodes(
            ids=self._mask_tokens(requests, masks),
            positions=slots,
            slots=slots,
            written=self.roots.written[part, None],
            prefix_lens=self.roots.starts[part],
            visible=self.in_order[:masks].expand(requests, -1, -1),
            features=self.mask_feature.expand(requests, masks, -1),
        )
        predict, _ = self.passes(nodes, masks, longest + masks, first)
        return predict.view(requests, masks, -1)

    def _best_of(self, features: Tensor) -> Best:
        """Of positions with ``features`` ``[R, positions, d]``."""
        requests, positions, _ = features.shape
        sharpness = self.roots.sharpness[:requests, None].expand(-1, positions).flatten()
        best = self._best(features.flatten(0, 1), self.sizes.largest.top_k, sharpness)
        tokens, log_probs = (found.view(requests, positions, -1) for found in best)
        return tokens, log_probs

    def _slots(self, part: slice, masks: int) -> Tensor:
        """KV slots of the rows with mask tokens, which are their positions too, ``[R, M]``."""
        return self.roots.starts[part, None] + self._places(masks)

    def _mask_tokens(self, requests: int, masks: int) -> Tensor:
        return self.paths.ids.new_full((requests, masks), self.mask_token)

    def _places(self, masks: int) -> Tensor:
        return torch.arange(masks, device=self.device)
