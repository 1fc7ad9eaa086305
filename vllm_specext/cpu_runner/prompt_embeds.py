"""Replacement for ``PromptEmbedsState.apply`` (``model_states/prompt_embeds.py``), whose kernel reads the requests'
embeddings through a table of raw pointers."""

from __future__ import annotations

from typing import Any

import torch

from vllm_specext.engine.changes.replacements import replaces


@replaces(
    "vllm.v1.worker.gpu.model_states.prompt_embeds.PromptEmbedsState.apply",
    name="prompts of embeddings on a CPU",
    why="a launch shows only addresses in a table of raw pointers, not the tensors that they point to",
    how="replaced by a body in torch, only where V2 runs on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="self input_batch num_computed_tokens inputs_embeds",
)
def apply(self: Any, input_batch: Any, num_computed_tokens: torch.Tensor, inputs_embeds: torch.Tensor) -> None:
    """Write the embeddings that were given as prompts over their rows of `inputs_embeds` `[T, H]`.

    `num_computed_tokens` `[M]` says by request slot how much of a prompt was computed before. Rows of a prompt that are
    tokens stay as they are.
    """
    for place, request in enumerate(input_batch.req_ids):
        if request not in self.gpu_tensors:
            continue
        embeds, is_token = self.gpu_tensors[request]
        begin, end = input_batch.query_start_loc[place : place + 2].tolist()
        rows = slice(int(num_computed_tokens[input_batch.idx_mapping[place]]), None)
        given = embeds[rows][: end - begin]
        target = inputs_embeds[begin : begin + len(given)]
        if is_token is None:
            target.copy_(given)
        else:
            target.copy_(torch.where(is_token[rows, None][: end - begin] != 0, target, given))
