"""Drafts that are drawn from a distribution over the target's tokens, which vLLM's rejection sampler gets to know.

The sampler takes logits before temperature, for every request slot and place of a draft, and makes of them what the
drafts were drawn from.
"""

import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

from vllm_specext.methods.foreign_vocab.speculator import ForeignSpeculator
from vllm_specext.methods.foreign_vocab.texts import Active


class SamplingSpeculator(ForeignSpeculator):
    def make_buffers(self) -> None:
        if self.options.samples_drafts:
            size = (self.max_num_reqs, self.num_speculative_steps, self.target_vocab_size)
            dtype = self.vllm_config.model_config.head_dtype
            self.columns = torch.arange(self.num_speculative_steps, device=self.device)
            self.draft_logits = torch.full(size, -torch.inf, dtype=dtype, device=self.device)

    def forget(self, slots: Tensor) -> None:
        """Until its tokens are chosen a draft is token 0 throughout, and its logits say that this was certain."""
        if self.draft_logits is not None:
            # Assigned by index, a number would make the host wait for the device.
            slots = slots.long()
            self.draft_logits.index_fill_(0, slots, -torch.inf)
            self.draft_logits[:, :, 0].index_fill_(0, slots, 0)

    def choose(self, logits: Tensor, active: Active, place: int, temperature: Tensor, seeds: Tensor) -> Tensor:
        """The tokens ``[A]`` of the target at ``place`` of the drafts, from ``logits`` ``[A, T]``."""
        if self.draft_logits is None:
            return logits.argmax(dim=-1)
        return gumbel_sample(
            logits.to(self.draft_logits.dtype),
            active.slots,
            temperature,
            seeds,
            # vLLM's noise is that of the position before the token, in a stream of the drafter's.
            active.target_ends - 1 + place,
            apply_temperature=True,
            is_drafting=True,
            logits_cache=self.draft_logits,
            logits_cache_col=self.columns[place],
            use_fp64=self.use_fp64_gumbel,
        )
