"""Verification with the logprobs of vLLM's sampler: those of the likeliest tokens, and of the tokens that a request
lists (``logprob_token_ids``), which vLLM's own verification leaves out.

Shapes: ``R`` requests, ``L`` rows of logits.
"""

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from vllm_specext.engine.verification.greedy import likeliest
from vllm_specext.kernels.tree_walk import accept_chain


class ScoringVerifier(RejectionSampler):
    """vLLM's verification step. A subclass gives ``_verify``, which sets the two tensors below."""

    _chosen: Tensor
    """The token that each row of a chunk's logits is reported with, ``[L]``."""
    _slots: Tensor
    """The request slot of each row, ``[L]``."""

    def __call__(
        self,
        logits: Tensor,
        input_batch: InputBatch,
        draft_logits: Tensor | None = None,
        invalid_drafts: Tensor | None = None,
    ) -> SamplerOutput:
        # For the whole batch, because the scores of several chunks are put together.
        self._logprobs_dims = self.sampler.get_logprobs_dims(input_batch.idx_mapping_np)
        self._has_drafts = logits.shape[0] != input_batch.num_reqs
        return super().__call__(logits, input_batch, draft_logits, invalid_drafts)

    def scored_rows(self, cu_num_logits: Tensor, cu_num_logits_np: np.ndarray) -> tuple[Tensor | slice, list[int]]:
        """A chunk's rows that may have emitted a token, the emitted ones of each request first, and where the requests
        begin among them, ``[R + 1]``."""
        return slice(None), cu_num_logits_np.tolist()

    def _get_logprobs_tensors(
        self,
        sampled: Tensor,
        num_sampled: Tensor,
        logits: Tensor,
        cu_num_logits: Tensor,
        cu_num_logits_np: np.ndarray,
        max_num_logprobs: int,
    ) -> LogprobsTensors | None:
        if self._logprobs_dims is None:
            return None
        num_logprobs, num_listed = self._logprobs_dims
        rows: Tensor | slice = slice(None)
        starts = None
        if self._has_drafts:
            rows, starts = self.scored_rows(cu_num_logits, cu_num_logits_np)
        return compute_topk_scores(
            logits[rows],
            num_logprobs,
            self._chosen[rows],
            starts,
            logprob_token_ids_state=self.sampler.logprob_token_ids_state,
            expanded_idx_mapping=self._slots[rows],
            max_per_req_token_ids=num_listed,
            logits_mode=self.sampler.logprobs_mode in ("raw_logits", "processed_logits"),
        )


class DrawnDraftVerifier(ScoringVerifier):
    """vLLM's own acceptance rule, for drafts that were drawn with probabilities. A greedy request's draft is accepted
    where it is the likeliest token, which a walk finds too."""

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
        self._slots = expanded_idx_mapping
        # Where acceptance is synthetic, it is not the target that decides.
        synthetic = self.synthetic_conditional_rates is not None
        drawn = None if synthetic else likeliest(self.sampler, logits, idx_mapping_np)
        if drawn is not None:
            self._chosen = drawn
            return logits, *accept_chain(drawn, verify_draft_sampled, cu_num_logits, self.num_speculative_steps + 1)
        processed_logits, emitted, num_sampled = super()._verify(
            logits,
            draft_logits,
            draft_sampled,
            pos,
            cu_num_logits,
            idx_mapping,
            idx_mapping_np,
            expanded_idx_mapping,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            verify_draft_sampled,
        )
        rows = torch.arange(len(logits), dtype=cu_num_logits.dtype, device=logits.device)
        request = torch.searchsorted(cu_num_logits[1:], rows, right=True)
        # What follows the last emitted token of a request was never written.
        is_emitted = expanded_local_pos < num_sampled[request]
        self._chosen = torch.where(is_emitted, emitted[request, expanded_local_pos], 0)
        return processed_logits, emitted, num_sampled
