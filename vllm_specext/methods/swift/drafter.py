"""The target as its own drafter: its layers, some of their sub-layers left out.

Only for targets whose layers are Llama's: attention behind one norm and an MLP behind another, each added to the
residual stream. A sub-layer that is left out is the identity, and a skipped attention writes no keys and values.
"""

from typing import Any

from torch import Tensor, nn

from vllm_specext.methods.swift.layers import SkipSet


class SelfDrafter(nn.Module):
    """Shares all modules with ``target``, one of vLLM's causal language models."""

    def __init__(self, target: Any, skipped: SkipSet) -> None:
        super().__init__()
        self.target = target
        self.skipped = skipped

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        hidden_states: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """``[T, E]``: what ``compute_logits`` reads."""
        model, skipped = self.target.model, self.skipped
        hidden = self.target.embed_input_ids(input_ids)
        for place, layer in enumerate(model.layers):
            if place not in skipped.attention:
                hidden = hidden + layer.self_attn(positions=positions, hidden_states=layer.input_layernorm(hidden))
            if place not in skipped.mlp:
                hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return model.norm(hidden)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return self.target.compute_logits(hidden_states)
