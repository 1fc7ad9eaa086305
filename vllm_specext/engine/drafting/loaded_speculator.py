"""A speculator's model as vLLM loads it, sends it to sleep and gives it other weights."""

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

from vllm_specext.engine.drafting.derived_weights import DerivedWeights
from vllm_specext.engine.drafting.draft_head import DraftHead
from vllm_specext.engine.drafting.float8_head import Float8Head, is_own_copy
from vllm_specext.engine.drafting.graphs import Graphs
from vllm_specext.engine.drafting.recorded_passes import RecordedPasses
from vllm_specext.engine.drafting.shared_modules import SharedModules
from vllm_specext.engine.kept_memory import kept_memory
from vllm_specext.errors import ConfigurationError


class LoadedSpeculator(DraftModelSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.draft_graphs: Graphs | None = None
        """What passes of the drafter run in, where there is something."""
        self.derived = DerivedWeights(vllm_config)
        self.derived.add("recorded passes", self._forget_recordings)

    def load_model(self, target_model: nn.Module) -> None:
        """vLLM's hook. Nobody loads a drafter again that a sleeping server has given back."""
        with kept_memory(self.vllm_config):
            super().load_model(target_model)
        for name, module in self.model.named_modules():
            if isinstance(module, DraftHead | Float8Head):
                self.derived.add(name, module.renew)
        self.shared = SharedModules(self.model, target_model)

    def _forget_recordings(self) -> None:
        """A CPU's products hold weights in a layout of their own, which recorded ones would go on to read."""
        if isinstance(self.draft_graphs, RecordedPasses):
            self.draft_graphs.forget()

    def prepare_for_weights(self) -> None:
        """Have the drafter's model ready for weights of a trainer's, until what it shares with the target is put back.
        Raises ``ConfigurationError`` where that has not been tried."""
        if (what := self.that_takes_no_weights()) is not None:
            raise ConfigurationError(
                f"start_draft_weight_update was asked for, but a drafter {what} cannot be given weights while the "
                "server runs; start it anew with the new drafter."
            )
        self.shared.take_out()

    def that_takes_no_weights(self) -> str | None:
        """What the drafter is, where that keeps it from being given weights."""
        config = self.speculative_config
        if not config.declared.takes_weights:
            return f"of method {config.method!r}"
        copied = any(is_own_copy(module) for module in self.model.modules())
        return "with an output layer of its own in float8" if copied else None
