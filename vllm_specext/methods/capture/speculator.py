"""The speculator that drafts nothing and keeps what a drafter would read."""

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.distributed import get_tp_group

from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.methods.capture.kept_rows import KeptRows, StepRows
from vllm_specext.options.capture import CaptureOptions


class CaptureSpeculator(StepSpeculator):
    """``kept`` has the rows of all requests that were not forgotten; ``None`` where another tensor-parallel rank, which
    has the same states, keeps them."""

    kept: KeptRows | None = None

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        options = vllm_config.speculative_config.options
        assert isinstance(options, CaptureOptions)
        self.options = options

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        layers = self.options.aux_layers or []
        if layers:
            target_model.set_aux_hidden_state_layers(tuple(layers))
        if get_tp_group().is_first_rank:
            width, dtype = self.hidden_size, getattr(torch, self.options.feature_dtype)
            tokens = max(self.options.capture_tokens, self.max_num_tokens)
            self.kept = KeptRows(tokens, width, len(layers) * width, dtype, self.device)
        return nn.Module()

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """There are no passes."""

    def capture(self) -> None:
        """There are no passes."""

    def draft(self, step: Step) -> Drafts:
        if self.kept is not None:
            # A run that measures memory has to take what a real step takes.
            rows = rows_of(step, self.options)
            if not step.dummy:
                batch = step.batch
                starts = batch.query_start_loc_np[: step.requests + 1].tolist()
                self.kept.add(batch.req_ids[: step.requests], starts, rows)
        return Drafts(self.draft_tokens[: step.requests, :0])


def rows_of(step: Step, options: CaptureOptions) -> StepRows:
    """Copies of what the step leaves: vLLM writes the next step's to the same memory."""
    count = step.batch.num_tokens
    dtype: torch.dtype = getattr(torch, options.feature_dtype)
    aux = None
    if options.aux_layers is not None:
        aux = torch.cat([states[:count] for states in step.auxiliary()], dim=1).to(dtype)
    return StepRows(
        step.batch.input_ids[:count].clone(),
        step.batch.positions[:count].clone(),
        step.last_hidden_states[:count].to(dtype, copy=True),
        aux,
    )
