"""SLEM on vLLM's V2 runner (Timor et al., arXiv 2502.05202, Algorithm 2): string-level exact match.

The drafter writes in its own tokens, greedily and until it is unsure; its text becomes tokens of the target, which the
target verifies by drawing its own. Converting goes over the host, request by request, in threads.
"""

from math import ceil, inf, log

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specext.methods.foreign_vocab.speculator import ForeignSpeculator
from vllm_specext.methods.foreign_vocab.texts import Active

MAX_STEPS = 64
"""Passes of the drafter for one draft; a byte-level drafter needs several for a token of the target."""


class SlemSpeculator(ForeignSpeculator):
    def make_buffers(self) -> None:
        self.ends = torch.tensor(sorted(self.pairing.drafter.ends), dtype=torch.int64, device=self.device)
        confidence = self.options.draft_confidence
        self.log_confidence = log(confidence) if confidence > 0 else -inf

    def room(self, nodes: int) -> int:
        """The number of the drafter's tokens that are as long as ``nodes`` of the target's, on average."""
        return min(MAX_STEPS, ceil(nodes * self.pairing.draft_tokens_per_target_token))

    def draft_for(self, active: Active, nodes: int, temperature: Tensor, seeds: Tensor) -> tuple[Tensor, np.ndarray]:
        tokens, counts = self._chain(active, self.room(nodes))
        converted = self.in_threads(
            lambda text, ids: text.bridge.convert(ids),
            ((text, row[:count].tolist()) for text, row, count in zip(active.texts, tokens, counts, strict=True)),
        )
        drafted = np.zeros((len(converted), nodes), dtype=np.int64)
        lengths = np.zeros(len(converted), dtype=np.int64)
        for place, (own, count) in enumerate(zip(converted, counts, strict=True)):
            # The last token drafted is not read.
            active.texts[place].cached += int(count) - 1
            lengths[place] = min(len(own.ids), nodes)
            drafted[place, : lengths[place]] = own.ids[:nodes]
        return async_tensor_h2d(drafted, device=self.device), lengths

    def _chain(self, active: Active, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """The drafter's tokens ``[A, steps]`` or fewer, and how many of each request count, 1 or more."""
        hidden, found = active.hidden, []
        alive = torch.ones_like(active.ends, dtype=torch.bool)
        counts = torch.zeros_like(active.ends)
        longest = int(active.ends_np.max())
        for step in range(steps):
            logits = self.model.compute_logits(hidden).float()
            best, tokens = logits.max(dim=-1)
            found.append(tokens)
            counts += alive
            sure = best - logits.logsumexp(dim=-1) >= self.log_confidence
            alive = alive & sure & ~torch.isin(tokens, self.ends)
            # The host converts what was drafted in any case, and a pass that nobody needs costs more than the question.
            if step + 1 == steps or not alive.any():
                break
            writes = torch.where(alive, active.slots, -1)
            hidden = self.drafter.step(tokens, active.ends + step, writes, longest + step + 1)
        told = torch.cat((counts[None], torch.stack(found))).cpu().numpy()
        return told[1:].T, told[0]
