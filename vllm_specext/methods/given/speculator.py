"""Drafts nothing of its own: what a request predicts is drafted before anything that a method drafts
(``engine/drafting/predictions.py``)."""

from typing import Any

import numpy as np
from torch import nn
from vllm.config.compilation import CUDAGraphMode

from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step


class GivenSpeculator(StepSpeculator):
    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        return nn.Module()

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """There are no passes."""

    def capture(self) -> None:
        """There are no passes."""

    def draft(self, step: Step) -> Drafts:
        drafted = self.draft_tokens[: step.requests, : step.length].zero_()
        return Drafts(drafted, None if step.dummy else np.zeros(step.requests, dtype=np.int64))
