"""What a drafter is given of a step, and what it returns.

Shapes: ``R`` requests of the step, ``S`` request slots, ``T`` rows of the step, ``d`` hidden size.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.verification.layout import AcceptedPaths


@dataclass(frozen=True)
class Step:
    """A step of the target that has been verified, as vLLM's runner hands it to a speculator."""

    batch: InputBatch
    length: int
    """Tokens to draft for each request; 0 where nothing is drafted, but what was verified is still taken in."""
    depth: int | None
    """Levels of the trees to draft; ``None`` for as many as they can have."""
    attn_metadata: dict[str, Any]
    slot_mappings: dict[str, Tensor]
    """KV slots of the rows, ``[T]`` for each attention layer."""
    last_hidden_states: Tensor
    """The target's, ``[T or more, d]``."""
    aux_hidden_states: list[Tensor] | None
    """Those that the method asked for, of several of the target's layers, each ``[T or more, d]``."""
    num_sampled: Tensor
    """Tokens that the step decided, ``[R]``; 0 for a request whose prompt goes on."""
    num_rejected: Tensor
    """Drafted tokens that were not accepted, ``[R]``."""
    last_sampled: Tensor
    """The newest token of each request slot, ``[S, 1]`` or ``[S]``."""
    next_prefill_tokens: Tensor
    """The prompt's next token of each request slot, ``[S]``."""
    temperature: Tensor
    """``[S]`` float32."""
    seeds: Tensor
    """``[S]`` int64."""
    accepted: AcceptedPaths | None
    """The accepted paths where draft trees were verified."""
    dummy: bool = False
    """There are no requests: nothing is kept and no state changes."""
    skips_attention: bool = False
    """There are no caches either: the step is to take as much memory as the largest real one."""
    others: dict[str, Any] = field(default_factory=dict)
    """What else vLLM's own ``propose`` takes by name."""

    @property
    def requests(self) -> int:
        """``R``"""
        return self.batch.num_reqs

    @property
    def longest(self) -> int:
        """At least the number of tokens of the longest request, those drafted last included."""
        return int(self.batch.seq_lens_cpu_upper_bound[: self.requests].max())

    def auxiliary(self) -> list[Tensor]:
        """The ``aux_hidden_states``, of a method that asked for some."""
        if not self.aux_hidden_states:
            raise RuntimeError("the target gave no auxiliary hidden states")
        return self.aux_hidden_states

    def accepted_by_all(self, width: int) -> AcceptedPaths | None:
        """The accepted paths, where every request of the step verified a tree and no path can have more than ``width``
        rows; otherwise a drafter reads the rows of the step."""
        paths = self.accepted
        if paths is None or len(paths.source) != self.requests or paths.source.shape[1] > width:
            return None
        return paths

    def lengths(self) -> Tensor:
        """Tokens of each request that the caches hold, ``[R]``; the last sampled one is not among them."""
        return self.batch.seq_lens[: self.requests] - self.num_rejected[: self.requests]

    def newest_tokens(self) -> Tensor:
        """The token that follows those, sampled or the prompt's, ``[R]``."""
        slots = self.batch.idx_mapping
        sampled, prompt = self.last_sampled.view(-1)[slots], self.next_prefill_tokens.view(-1)[slots]
        return torch.where(self.num_sampled > 0, sampled, prompt.to(sampled.dtype))


@dataclass(frozen=True)
class Drafts:
    """The drafts of a step."""

    tokens: Tensor
    """``[R, n]`` int64; shorter than was asked for where ``n`` is smaller than ``Step.length``."""
    lengths: np.ndarray | None = None
    """How many of them the scheduler is told for each request, ``[R]``; ``None`` for what was asked for."""
