"""The sizes of a DFlash or DSpark drafter, and the target's layers that it reads."""

from dataclasses import dataclass

from vllm_specext.methods.block.checkpoint import BlockShape
from vllm_specext.methods.block.model import Sizes
from vllm_specext.methods.layers import Rotary
from vllm_specext.training.eagle3 import shape as eagle3

STATES = 5
"""Hidden states of the target that a drafter reads side by side, as released ones do."""


@dataclass(frozen=True)
class BlockDrafterShape:
    """All that is needed to build a drafter with the target's vocabulary and hidden size."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    target_layers: int
    reads: tuple[int, ...]
    """The target's layers whose inputs the drafter reads, ascending. ``config.json`` has numbers that are one lower: of
    the layers whose outputs they are."""
    block: int
    """Rows of a block: the last token of the text, and mask tokens."""
    mask: int
    """The token that stands for those that are not known yet."""
    markov_rank: int | None = None
    """Width of DSpark's Markov head; DFlash has none."""
    confidence: bool = False
    """Whether a DSpark drafter has a confidence head."""

    @property
    def drafted(self) -> int:
        """Tokens that a block drafts: DSpark's rows give the token after their own, DFlash's mask tokens their own."""
        return self.block if self.markov_rank is not None else self.block - 1

    def sizes(self) -> Sizes:
        return Sizes(
            hidden_size=self.hidden_size,
            states_size=len(self.reads) * self.hidden_size,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            mlp_size=self.mlp_size,
            rms_norm_eps=self.rms_norm_eps,
            rotary=Rotary(self.rope_theta),
        )

    def parameters(self) -> BlockShape:
        """The parameters as vLLM's class has them."""
        return BlockShape(
            vocab_size=self.vocab_size,
            draft_vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            target_hidden_size=self.hidden_size,
            states=len(self.reads),
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            mlp_size=self.mlp_size,
            markov_rank=self.markov_rank,
            confidence_size=self.hidden_size + (self.markov_rank or 0) if self.confidence else None,
        )

    def trained(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what is trained, by name."""
        shapes = self.parameters()
        head = {name: shape for name, shape in shapes.optional().items() if name.startswith("confidence_head.")}
        return {**shapes.required(), **head}


def layers_to_read(count: int) -> tuple[int, ...]:
    """Of a target with ``count`` layers: ``STATES`` at equal distances, from the output of the second layer to that of
    the last but two, as z-lab's drafters read them; what an EAGLE-3 drafter reads, where there are too few.

    Raises ``ConfigurationError`` for a target of fewer than four layers.
    """
    if count < STATES + 3:
        return eagle3.layers_to_read(count)
    return tuple(1 + round(1 + place * (count - 4) / (STATES - 1)) for place in range(STATES))
