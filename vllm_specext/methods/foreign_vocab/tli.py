"""TLI on vLLM's V2 runner (Timor et al., arXiv 2502.05202, Algorithm 4): drafts from the tokens that both models have.

The drafter's logits are restricted to the intersection, so that what it drafts are tokens of the target as they stand.
With ``draft_sample_method`` "probabilistic" they are drawn at the request's temperature, and their logits are kept for
vLLM's rejection sampler, in the target's vocabulary; otherwise the best one is taken.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from vllm_specext.methods.foreign_vocab.distributions.intersection import Intersection
from vllm_specext.methods.foreign_vocab.sampling import SamplingSpeculator
from vllm_specext.methods.foreign_vocab.texts import Active


class TliSpeculator(SamplingSpeculator):
    def make_buffers(self) -> None:
        super().make_buffers()
        self.intersection = Intersection(self.pairing.shared, self.target_vocab_size, self.device)
        self.drafters_id = torch.zeros(self.target_vocab_size, dtype=torch.int64, device=self.device)
        self.drafters_id[self.intersection.target_ids] = self.intersection.kept

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        model = super().load_draft_model(target_model, target_attn_layer_names)
        self.head = self._pruned_head(model)
        self.derived.add("rows of the drafter's head", self._renew_head)
        return model

    def _renew_head(self) -> None:
        if self.head is not None and (pruned := self._pruned_head(self.model)) is not None:
            self.head.copy_(pruned)

    def _pruned_head(self, model: Any) -> Tensor | None:
        """The rows of the drafter's head that are needed, where it is a plain matrix in one piece."""
        head, processor = getattr(model, "lm_head", None), getattr(model, "logits_processor", None)
        is_plain = (
            isinstance(getattr(head, "quant_method", None), UnquantizedEmbeddingMethod)
            and getattr(head, "bias", None) is None
            and processor is not None
            and (processor.scale, processor.soft_cap) == (1.0, None)
        )
        if head is None or not is_plain or self.speculative_config.draft_tensor_parallel_size > 1:
            return None
        return self.intersection.prune(head.weight)

    def _logits(self, hidden: Tensor) -> Tensor:
        """``[A, I]``"""
        if self.head is None:
            return self.intersection.select(self.model.compute_logits(hidden))
        return linear(hidden.to(self.head.dtype), self.head)

    def room(self, nodes: int) -> int:
        return nodes

    def draft_for(self, active: Active, nodes: int, temperature: Tensor, seeds: Tensor) -> tuple[Tensor, np.ndarray]:
        hidden, found = active.hidden, []
        longest = int(active.ends_np.max())
        for step in range(nodes):
            logits = self._logits(hidden)
            found.append(self.choose(self.intersection.scatter(logits, -torch.inf), active, step, temperature, seeds))
            if step + 1 < nodes:
                ids = self.drafters_id[found[-1]]
                hidden = self.drafter.step(ids, active.ends + step, active.slots, longest + step + 1)
        return torch.stack(found, dim=1), np.full(len(active.texts), nodes)
