"""Drafts the next tokens of what each request gave.

A place is kept in each request's prediction (``tree/place.py``), on the host. After a step the newest tokens of all
texts are taken there in one copy, as the methods with a tokenizer of their own do it: the place can only be followed
with the tokens that were decided. The step waits for this copy, which no other drafting follows. Without a request that
has a prediction nothing is copied.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specext.engine.drafting.new_tokens import NewTokens
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.requests import Drafting, prediction_of
from vllm_specext.options.given import GivenOptions
from vllm_specext.tree.place import Place


@dataclass
class Text:
    place: Place
    known: int
    """Tokens of the request that the place has followed, or that came before."""

    def follow(self, tokens: list[int]) -> None:
        self.place.follow(tokens)
        self.known += len(tokens)


class GivenSpeculator(StepSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        options = vllm_config.speculative_config.options
        assert isinstance(options, GivenOptions)
        self.options = options
        self.texts: dict[int, Text] = {}
        """By request slot, of requests that something was given for."""

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        return nn.Module()

    def set_attn(self, model_state: Any, *args: Any) -> None:
        super().set_attn(model_state, *args)
        self.texts.clear()
        model_state.tell(self._add)

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """There are no passes."""

    def capture(self) -> None:
        """There are no passes."""

    def _add(self, slot: int, request: Any) -> None:
        """Begin with a request, or go on with one that was preempted and comes with the tokens that it has."""
        self.texts.pop(slot, None)
        tokens, match = request.prefill_token_ids, self.options.match_tokens
        prompt, answer = tokens[: request.prompt_len], tokens[request.prompt_len :]
        if given := prediction_of(request.sampling_params):
            place = Place(np.array(given), match)
        elif self.options.use_prompt:
            place = Place(np.array(prompt), match, before=prompt)
        else:
            return
        place.follow(answer)
        self.texts[slot] = Text(place, len(tokens))

    def draft(self, step: Step) -> Drafts:
        requests = step.requests
        if step.dummy:
            return Drafts(self.draft_tokens[:requests])
        drafted = self.draft_tokens[:requests, : step.length].zero_()
        lengths = np.zeros(requests, dtype=np.int64)
        slots = step.batch.idx_mapping_np.tolist()
        if not step.length or self.texts.keys().isdisjoint(slots):
            return Drafts(drafted, lengths)
        new = NewTokens(step, self.req_states.all_token_ids.gpu, self.num_speculative_steps + 1)
        wanted = self.model_state.drafting[step.batch.idx_mapping_np] != Drafting.OFF
        tokens = np.zeros((requests, step.length), dtype=np.int64)
        for place in new.decided[wanted[new.decided]].tolist():
            text = self.texts.get(slots[place])
            if text is None:
                continue
            text.follow(new.after(place, text.known))
            given = text.place.draft(step.length)
            lengths[place] = len(given)
            tokens[place, : len(given)] = given
        if lengths.any():
            drafted.copy_(async_tensor_h2d(tokens, device=self.device))
        return Drafts(drafted, lengths)
