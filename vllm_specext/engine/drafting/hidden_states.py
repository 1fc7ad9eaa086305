"""Drafters over the target's hidden states: GRIFFIN's, and vLLM's own of the EAGLE family.

A method says how its drafter is loaded and which features it reads (``HiddenStateDrafter``); drafting is the same for
all: chains as vLLM drafts them (``ChainSpeculator``), or trees (``tree_speculator.py``).
"""

from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator
from vllm.v1.worker.gpu.spec_decode.eagle.utils import load_eagle_model

from vllm_specext.engine.drafting.cache_groups import wrap_own_latent_layers
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.kernels.best_tokens import best_token


class HiddenStateDrafter:
    """A drafter that reads the target's last hidden states."""

    def load(self, target_model: Any, vllm_config: VllmConfig) -> nn.Module:
        """The drafter's module, with what it shares with the target."""
        drafter: nn.Module = load_eagle_model(target_model, vllm_config)
        return drafter

    def features(self, model: Any, step: Step, rows: Tensor | None) -> Tensor:
        """What ``model`` reads of the step's ``rows``, or of all where there are none: ``[rows, d]``."""
        return step.last_hidden_states if rows is None else step.last_hidden_states[rows]

    def ask_for(self, model: Any, rows: Tensor | None) -> None:
        """Say which rows' features are read of the next passes of ``model``, ``[R]`` int64, or all (``None``), for one
        that need not compute the others. Their keys and values are wanted all the same."""

    def target_ids(self, model: Any, tokens: Tensor) -> Tensor:
        """The target's ids of ``tokens``, int64 of any shape, which are places in the logits of ``model``."""
        return tokens


class ChainSpeculator(StepSpeculator, EagleSpeculator):
    """Chains, as vLLM drafts them."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, drafter: HiddenStateDrafter) -> None:
        super().__init__(vllm_config, device)
        self.drafter = drafter

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter = self.drafter.load(target_model, self.vllm_config)
        wrap_own_latent_layers(self.vllm_config, target_attn_layer_names)
        return drafter

    def draft(self, step: Step) -> Drafts:
        return Drafts(self.draft_chains(step, self.drafter.features(self.model, step, None), step.length))

    def on_prefill_begin(self, num_reqs: int) -> None:
        """vLLM's hook, before its first pass, of which it reads each request's last row."""
        self.drafter.ask_for(self.model, self.last_token_indices[:num_reqs])

    def on_prefill_end(self, num_reqs: int) -> None:
        self.drafter.ask_for(self.model, None)

    def sample_draft(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """vLLM's hook: a token for each row ``[T, d]``."""
        if self.draft_logits is None and self.acceptance_estimator is None and not self.use_local_argmax_reduction:
            tokens = best_token(self.compute_draft_logits(hidden_states, kwargs.get("spec_step_idx", 0)))
        else:
            tokens = super().sample_draft(hidden_states, *args, **kwargs)
        return self.drafter.target_ids(self.model, tokens)

    def draft_chains(self, step: Step, features: Tensor, length: int) -> Tensor:
        """vLLM's passes: one over the rows of the step with their ``features`` ``[T or more, d]``, then one for each
        further token; drafted tokens ``[R, num_speculative_steps]`` in vLLM's buffer, of which ``length`` count."""
        return EagleSpeculator.propose(
            self,
            step.batch,
            step.attn_metadata,
            step.slot_mappings,
            features,
            None,
            step.num_sampled,
            step.num_rejected,
            step.last_sampled,
            step.next_prefill_tokens,
            step.temperature,
            step.seeds,
            dummy_run=step.dummy,
            skip_attn_for_dummy_run=step.skips_attention,
            num_speculative_tokens=length,
            **step.others,
        )
