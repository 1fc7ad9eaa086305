"""The sizes of an EAGLE-3 drafter, and the target's layers that it reads."""

from dataclasses import dataclass

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.eagle.checkpoint import DrafterShape

STATES = 3
"""Hidden states of the target that the drafter reads side by side."""

Layers = tuple[int, ...]
"""Ascending numbers of ``STATES`` of the target's layers, as vLLM counts: ``i`` is the input of layer ``i``."""


@dataclass(frozen=True)
class Eagle3Shape:
    """All that is needed to build a drafter of one layer with the target's hidden size."""

    vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    layers: Layers
    draft_vocab_size: int | None = None
    """Rows of an output layer of the drafter's own, for so many of the target's tokens or for all; ``None``: it has the
    target's."""

    norm_before_residual: bool = False
    """Whether the layer adds attention's output to the hidden state after its norm, as in drafters of
    speculators."""

    @property
    def has_own_vocabulary(self) -> bool:
        return self.draft_vocab_size not in (None, self.vocab_size)

    def parameters(self) -> DrafterShape:
        """The parameters as vLLM's class has them."""
        return DrafterShape(
            is_eagle3=True,
            vocab_size=self.vocab_size,
            draft_vocab_size=self.draft_vocab_size or self.vocab_size,
            hidden_size=self.hidden_size,
            target_hidden_size=self.hidden_size,
            states=STATES,
            layers=1,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            mlp_size=self.mlp_size,
        )


def default_layers(count: int) -> Layers:
    """The layers that vLLM reads of a target with ``count`` layers, where a checkpoint names none."""
    return 2, count // 2, count - 3


def layers_to_read(count: int) -> Layers:
    """Those that a new drafter reads: vLLM's default, or, where the target has too few layers for it, others.

    Raises ``ConfigurationError`` for a target of fewer than four layers.
    """
    if count <= STATES:
        raise ConfigurationError(
            f"the target has num_hidden_layers {count}, but an EAGLE-3 drafter reads the inputs of {STATES} layers "
            f"after the first; at least {STATES + 1} are needed."
        )
    usual = default_layers(count)
    return usual if sorted(set(usual)) == list(usual) else (1, count // 2, count - 1)
