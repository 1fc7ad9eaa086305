"""The part of vLLM's speculator interface that all methods share: ``propose`` once, as a value."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.drafting.calibrated import CalibratedTrees
from vllm_specext.engine.drafting.loaded_speculator import LoadedSpeculator
from vllm_specext.engine.drafting.predictions import Predictions
from vllm_specext.engine.drafting.roots import Roots
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.drafting.told_trees import ToldTrees
from vllm_specext.engine.drafting.tree_draft import TreeDraft, hand_over, hand_over_chains
from vllm_specext.engine.verification.tree_steps import TreeSteps


class StepSpeculator(LoadedSpeculator):
    """A speculator that gives the ``draft`` of a ``Step``."""

    req_states: Any = None
    """vLLM's states of all requests, by request slot; set after construction."""
    draft_lengths: np.ndarray | None = None
    """What the scheduler is told of the last drafts, ``[R]``; ``None`` for the same number for all."""
    stats: Any = None
    """What goes to the metrics, where a method has some: ``changes()`` gives what is new since the last call."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        options, drafted = vllm_config.speculative_config.options, self.num_speculative_steps
        self.predictions = None if options.predicted is None else Predictions(options.predicted, drafted)
        self.calibrated = CalibratedTrees(device) if options.calibrates else None
        self.told_trees = ToldTrees(device)
        self._depth: int | None = None

    def set_attn(self, model_state: Any, *args: Any) -> None:
        super().set_attn(model_state, *args)
        if self.predictions is not None:
            self.predictions.clear()
            model_state.tell(self.predictions.add)

    def begin_step(self, depth: int | None) -> None:
        """``depth``: levels of the trees to draft after it, ``None`` for as many as they can have. ``propose`` has no
        argument for it."""
        self.derived.renew()
        self._depth = depth

    def draft(self, step: Step) -> Drafts:
        """Draft ``step.length`` tokens for each request, or fewer."""
        raise NotImplementedError

    @property
    def steps(self) -> TreeSteps | None:
        """The target's steps over draft trees; ``None`` where it verifies chains, and before there are caches."""
        return getattr(getattr(self, "model_state", None), "steps", None)

    def sharpen(self, step: Step, roots: Roots, top_k: int) -> None:
        """Learn from ``step`` how sharp the drafter's probabilities ought to be, for what grows from ``roots``; nothing
        depends on it in chains, where ``top_k`` is 1."""
        if self.calibrated is not None and self.steps is not None and top_k > 1:
            roots.sharpen(self.calibrated.sharpness(step, self.steps.trees))

    def hand_over(self, step: Step, grown: TreeDraft, top_k: int) -> Drafts:
        """Keep what was ``grown`` after ``step`` for the target's next one: trees, or chains where ``top_k`` is 1."""
        if top_k == 1:
            return self.hand_over_chains(step, Drafts(grown.tokens))
        return Drafts((grown if step.dummy else hand_over(grown, step.batch, self.model_state)).tokens)

    def hand_over_chains(self, step: Step, chains: Drafts) -> Drafts:
        """The same for ``chains``, which a target that verifies no trees needs nobody to keep."""
        if step.length and not step.dummy and self.steps is not None:
            hand_over_chains(chains.tokens.shape[1], step.length, step.batch, self.steps.trees)
        return chains

    @torch.inference_mode()
    def propose(
        self,
        input_batch: InputBatch,
        attn_metadata: dict[str, Any],
        slot_mappings: dict[str, Tensor],
        last_hidden_states: Tensor,
        aux_hidden_states: list[Tensor] | None,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> Tensor:
        """vLLM's hook: drafted tokens ``[R, num_speculative_steps]``, padded with 0 up to the number asked for."""
        length = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        steps = self.steps
        step = Step(
            batch=input_batch,
            length=length,
            depth=self._depth,
            attn_metadata=attn_metadata,
            slot_mappings=slot_mappings,
            last_hidden_states=last_hidden_states,
            aux_hidden_states=aux_hidden_states,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
            last_sampled=last_sampled,
            next_prefill_tokens=next_prefill_tokens,
            temperature=temperature,
            seeds=seeds,
            accepted=None if steps is None else steps.accepted_in(input_batch),
            dummy=dummy_run,
            skips_attention=skip_attn_for_dummy_run,
            others={"dp_sync_state": dp_sync_state, "mm_inputs": mm_inputs, "is_profile": is_profile},
        )
        drafts = self.draft(step)
        if self.predictions is not None and not dummy_run:
            drafts = self.predictions.before(drafts, step, self)
        self.draft_lengths = drafts.lengths
        drafted, count = self.draft_tokens[: input_batch.num_reqs], drafts.tokens.shape[1]
        if drafts.tokens.data_ptr() != drafted.data_ptr():  # vLLM's own drafting leaves them there
            drafted[:, :count] = drafts.tokens
        # The scheduler counts on all tokens asked for; those after a shorter draft are padding.
        drafted[:, count:length] = 0
        self.told_trees.take(step, None if steps is None else steps.trees)
        return drafted
