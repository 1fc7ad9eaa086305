"""GRIFFIN on vLLM's V2 runner.

vLLM's speculator for drafters over the target's hidden states does most of it: one causal pass over the rows of the
step with the target's features, then passes with the drafter's own feature, all on the device, with keys and values in
the same block table as the target's. GRIFFIN differs in the model, which returns one feature for the logits and another
for the recurrence, and in using the target's own logits computation.
"""

from typing import Any

from torch import nn

from vllm_specext.engine.tree_speculator import TreeSpeculator


class GriffinSpeculator(TreeSpeculator):
    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter = super().load_draft_model(target_model, target_attn_layer_names)
        is_wrapped = hasattr(target_model, "get_language_model")
        language_model = target_model.get_language_model() if is_wrapped else target_model
        # Targets that scale or cap their logits do so here.
        drafter.logits_processor = language_model.logits_processor
        return drafter
