"""Verification by the target's own sampler: lossless, and with the same seed the same tokens as without speculation.

At every verified position the target draws its next token exactly as it would when decoding plainly (vLLM keys the
noise by the request's seed and the position). A drafted token is accepted while it is the token that was drawn before
it; the first drawn token that the draft does not continue is emitted and ends the step. For deterministic drafts this
is also the best that any lossless rule can do, and it needs no draft probabilities.
"""

import numpy as np
from torch import Tensor
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from vllm_specext.tree.walk import accept_chain


class TargetOnlyVerifier(RejectionSampler):
    """vLLM's verification step (chunks, logprobs, placeholders) with the acceptance rule of this module."""

    def _verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        verify_draft_sampled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        drawn, processed_logits = self.sampler.sample(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            return_logprobs=self.sampler.sampling_states.max_num_logprobs(idx_mapping_np) != NO_LOGPROBS,
        )
        emitted, num_sampled = accept_chain(drawn, verify_draft_sampled, cu_num_logits, self.num_speculative_steps + 1)
        return processed_logits, emitted, num_sampled
