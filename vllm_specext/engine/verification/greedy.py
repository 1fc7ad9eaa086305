"""What a batch draws whose requests all take the likeliest token: one argmax, without the rest of vLLM's sampler.

The sampler goes through the same steps for every batch: what changes the logits, top-k and top-p, a kernel that could
add noise, which finds the best token of each block of the vocabulary, and another that finds the best of these. Greedy
requests that want nothing of it get the token with the largest logit. That is this token too: nothing is added to their
logits, a cast to float32 changes no order, and of equal logits both take the first. The logits have been gathered from
all ranks by then, and the grammar of a structured output has masked them.

Whether a batch is of that kind is read from what the sampler keeps on the host.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample.sampler import Sampler

from vllm_specext.engine.changes.replacements import replaces


def likeliest(sampler: Sampler, logits: Tensor, request_slots: np.ndarray) -> Tensor | None:
    """The tokens ``[L]`` int64 that ``sampler`` would draw from ``logits`` ``[L, V]``, where it would take the largest
    of each row; ``None`` where a request in one of ``request_slots`` ``[R]`` wants more of it. The logits that the
    sampler returns are then ``logits``, unchanged. On a CPU also what a row with a NaN draws is the same: the first."""
    return largest(logits) if wants_nothing_else(sampler, request_slots) else None


def wants_nothing_else(sampler: Sampler, request_slots: np.ndarray) -> bool:
    """Whether no request draws noise, and none has its logits changed: by penalties, biases, lists of words or tokens,
    a least number of tokens, a budget for thinking, or a processor of the user's."""
    # A subclass draws in another way. vLLM resets top-k, top-p and min-p of greedy requests.
    return type(sampler) is Sampler and not (
        sampler.sampling_states.temperature.np[request_slots].any()
        or sampler.needs_logits_processing[request_slots].any()
    )


def largest(logits: Tensor) -> Tensor:
    """The first of the largest in each row of ``logits`` ``[L, V]``: ``[L]`` int64."""
    if logits.is_cpu:
        # torch looks at one logit after the other, which takes ten times as long.
        return torch.from_numpy(logits.float().numpy().argmax(axis=1))
    # Outside of graphs: our kernels would take 3 us of the GPU instead of 26, but 130 of the host instead of 38.
    return logits.argmax(dim=-1)


@replaces(
    "vllm.v1.worker.gpu.sample.sampler.Sampler.sample",
    name="greedy draws on a CPU",
    why="the sampler calls every one of its kernels' bodies, where a batch of greedy requests needs one argmax",
    how=(
        "wrapped on a CPU: such a batch gets the argmax, with drafts or without; our verification takes the same way "
        "on every device and calls what is wrapped for other batches only"
    ),
    upstream="none known",
    until="vLLM's sampler has a short way for greedy batches",
    signature=(
        "self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids expanded_local_pos "
        "seq_lens_upper_bound_np return_logprobs"
    ),
)
def sample_greedily(original: Callable) -> Callable:
    def sample(
        self: Sampler, logits: Tensor, rows: Tensor, slots: Tensor, slots_np: np.ndarray, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        drawn = likeliest(self, logits, slots_np)
        if drawn is not None:
            return drawn, logits
        return original(self, logits, rows, slots, slots_np, *args, **kwargs)

    return sample
