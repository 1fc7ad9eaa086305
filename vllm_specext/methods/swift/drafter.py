"""The target as its own drafter: its layers, without some of their sub-layers.

This works only for targets with layers like Llama's: attention after one norm and an MLP after another, each added to
the residual stream. A skipped sub-layer is the identity, and a skipped attention writes no keys and values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from vllm_specext.methods.swift.search.skip_set import ATTENTION, MLP, SkipSet, SubLayer

END = "end"


class SelfDrafter(nn.Module):
    """A drafter that shares all modules with ``target``, one of vLLM's causal language models."""

    def __init__(self, target: Any, skipped: SkipSet) -> None:
        super().__init__()
        self.target = target
        self.skipped = skipped
        self._before: Callable[[SubLayer | str], None] = lambda piece: None

    @contextmanager
    def in_pieces(self, before: Callable[[SubLayer | str], None]) -> Iterator[None]:
        """Skip nothing in this block. Call ``before`` with each sub-layer right before it runs, and with ``END`` after
        the last one."""
        outer = self.skipped, self._before
        self.skipped, self._before = SkipSet(self.skipped.layers, (), ()), before
        try:
            yield
        finally:
            self.skipped, self._before = outer

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """The hidden states ``[T, E]`` that ``compute_logits`` reads."""
        model, before = self.target.model, self._before
        hidden = self.target.embed_input_ids(input_ids)
        # Added in place: a graph of one sub-layer finds the stream where the graph of any other left it.
        for place, layer in enumerate(model.layers):
            if (ATTENTION, place) not in self.skipped.sub_layers:
                before((ATTENTION, place))
                hidden += layer.self_attn(positions=positions, hidden_states=layer.input_layernorm(hidden))
            if (MLP, place) not in self.skipped.sub_layers:
                before((MLP, place))
                hidden += layer.mlp(layer.post_attention_layernorm(hidden))
        before(END)
        return model.norm(hidden)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return self.target.compute_logits(hidden_states)
