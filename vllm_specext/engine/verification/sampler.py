"""Verification by the target's own sampler: lossless, and with the same seed the same tokens as without speculation.

At every verified position the target draws its next token exactly as it would when decoding plainly (vLLM keys the
noise by the request's seed and the position). A drafted token is accepted while it is the token that was drawn before
it; the first drawn token that the draft does not continue is emitted and ends the step. For deterministic drafts this
is also the best that any lossless rule can do, and it needs no draft probabilities.
"""

import numpy as np
import torch
from torch import Tensor
from vllm.config import SpeculativeConfig
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.verification.greedy import likeliest
from vllm_specext.engine.verification.path_text import read_paths
from vllm_specext.engine.verification.scoring import ScoringVerifier
from vllm_specext.engine.verification.tree_steps import TreeSteps
from vllm_specext.kernels.tree_walk import accept_chain, accept_tree


class TargetOnlyVerifier(ScoringVerifier):
    """vLLM's verification step (chunks, placeholders) with the acceptance rule of this module."""

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
        processed_logits = logits
        drawn = likeliest(self.sampler, logits, idx_mapping_np)
        if drawn is None:
            drawn, processed_logits = self.sampler.sample(
                logits,
                expanded_idx_mapping,
                idx_mapping,
                idx_mapping_np,
                self.noise_positions(pos, expanded_idx_mapping, expanded_local_pos),
                draft_sampled,
                expanded_local_pos,
                seq_lens_upper_bound_np,
                return_logprobs=self._logprobs_dims is not None,
            )
        self._chosen, self._slots = drawn, expanded_idx_mapping
        emitted, num_sampled = self.walk(drawn, verify_draft_sampled, cu_num_logits, idx_mapping)
        return processed_logits, emitted, num_sampled

    def noise_positions(self, positions: Tensor, request_slots: Tensor, nodes: Tensor) -> Tensor:
        """Sequence positions ``[L]`` of logits rows, given those of a chain, their request slot and their place."""
        return positions

    def walk(
        self, drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, request_slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Emitted tokens ``[R, width]`` and how many of them count, ``[R]`` int32; ``request_slots`` ``[R]``."""
        return accept_chain(drawn, drafted, cu_num_logits, self.num_speculative_steps + 1)


class TreeVerifier(TargetOnlyVerifier):
    """The same for draft trees, whose rows are in node order; the step goes on from the accepted paths."""

    def __init__(
        self, sampler: Sampler, spec_config: SpeculativeConfig, device: torch.device, steps: TreeSteps
    ) -> None:
        super().__init__(sampler, spec_config, device)
        self.steps, self.trees = steps, steps.trees
        read_paths(sampler, steps.trees)
        self._walked: list[tuple[Tensor, Tensor]] = []  # of the chunks of rows that vLLM verifies one after another
        self._width = 1  # of a path, at most, in this step

    @replaces(
        "vllm.v1.worker.gpu.sample.output.SamplerOutput.logprobs_tensors",
        name="logprobs of chunks",
        why="vLLM counts a row of logprobs for every row of logits where it puts several chunks together",
        how="set on the output of a step that verified trees, with the rows of the accepted paths counted",
        upstream="none known",
        until="vLLM verifies trees whose shape differs by request",
        kind="set",
    )
    def __call__(
        self,
        logits: Tensor,
        input_batch: InputBatch,
        draft_logits: Tensor | None = None,
        invalid_drafts: Tensor | None = None,
    ) -> SamplerOutput:
        self.steps.end_pass(input_batch)
        self._walked.clear()
        self._width = min(self.trees.levels + 1, int(np.diff(input_batch.cu_num_logits_np).max()))
        output = super().__call__(logits, input_batch, draft_logits, invalid_drafts)
        path, accepted = (torch.cat(parts) for parts in zip(*self._walked, strict=True))
        self.steps.accept(input_batch, path, accepted)
        if self._has_drafts and (logprobs := output.logprobs_tensors) is not None:
            # vLLM counts a row of logprobs for every row of logits where it puts several chunks together.
            output.logprobs_tensors = logprobs._replace(cu_num_generated_tokens=self._starts(len(path)))
        return output

    def noise_positions(self, positions: Tensor, request_slots: Tensor, nodes: Tensor) -> Tensor:
        return self.trees.depth_positions(positions, request_slots, nodes)

    def walk(
        self, drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, request_slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        parents = self.trees.topology.parents[request_slots]
        emitted, num_sampled, path = accept_tree(drawn, drafted, cu_num_logits, parents, self.trees.levels)
        self._walked.append((path, num_sampled))
        return emitted, num_sampled

    def scored_rows(self, cu_num_logits: Tensor, cu_num_logits_np: np.ndarray) -> tuple[Tensor | slice, list[int]]:
        path, _ = self._walked[-1]
        return (cu_num_logits[:-1, None] + path[:, : self._width]).flatten(), self._starts(len(path))

    def _starts(self, requests: int) -> list[int]:
        """First rows of the paths of so many ``requests``: each has a root, and as many rows as a step's draft."""
        return [request * self._width for request in range(requests + 1)]
