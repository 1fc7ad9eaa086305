"""A logits processor of a user's, which engines under test load by its name."""

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcessor


class ByTheOneBefore(LogitsProcessor):
    """Makes a token likelier that depends on the last token but one. It takes the row before for that one, as vLLM's
    interface has it."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.said, self.lengths = req_states.all_token_ids, req_states.total_len

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        rows = torch.arange(len(logits), device=logits.device)
        slots = ctx.expanded_idx_mapping.long()
        said = self.said.gpu[slots, (self.lengths.gpu[slots] - 2).clamp(min=0).long()]
        before = torch.where(ctx.expanded_local_pos > 0, ctx.input_ids[(rows - 1).clamp(min=0)], said)
        logits[rows, before.long() * 7 % logits.shape[1]] += 4
        return logits
