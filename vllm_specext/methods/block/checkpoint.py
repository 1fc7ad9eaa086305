"""The parameters of vLLM's classes of DFlash and DSpark drafters, as released checkpoints name them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import Shapes
from vllm_specext.methods.stock.checkpoint import meaning_of_any

MASK_EMBEDDING = "mask_embedding.pt"
"""A file in which some drafters have the embedding of mask tokens."""
MAX_BLOCK = 65
"""The most rows of a block; released drafters have up to 16."""


def refuse_mask_embedding(directory: Path) -> None:
    """Raise ``ConfigurationError`` where ``directory`` has such a file."""
    if (directory / MASK_EMBEDDING).exists():
        raise ConfigurationError(
            f"{directory / MASK_EMBEDDING} is an embedding of mask tokens in its own file, which is not supported; "
            "supported is that of mask_token_id in the embedding."
        )


@dataclass(frozen=True)
class Second:
    """Convolutions over the rows of a block around attention and the MLP, and scores of neighbouring tokens."""

    taps: int
    """Rows that a convolution reads: a row and those before it."""
    group: int
    """Channels with the same coefficients."""
    rank: int
    """Width of the tables of tokens that scores come from."""
    candidates: int
    """Most likely tokens of a position that are scored."""

    def convolution(self, prefix: str, d: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{prefix}.base_kernel", (2, self.taps, d)
        yield f"{prefix}.kernel_projection.weight", (2 * self.taps * (d // self.group), d)

    def selector(self, vocab_size: int, d: int) -> Shapes:
        tables = {f"{side}_codebook": (vocab_size, self.rank) for side in ("predecessor", "successor")}
        shapes = tables | {"hidden_projection.weight": (self.rank, d)}
        return {f"candidate_selector.{name}": shape for name, shape in shapes.items()}


@dataclass(frozen=True)
class BlockShape:
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    states: int
    """Hidden states of the target that ``fc`` reads side by side."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    bias: bool = False
    """Whether the projections of attention have a bias each."""
    sinks: bool = False
    """Whether each head of attention has a sink."""
    markov_rank: int | None = None
    """Width of DSpark's Markov head; DFlash has none."""
    confidence_size: int | None = None
    """What the confidence head reads, where a DSpark drafter has one."""
    second: Second | None = None
    """What DFlash's second kind has besides."""

    @property
    def kind(self) -> str:
        if self.second is not None:
            return "DFlash2"
        return "DFlash" if self.markov_rank is None else "DSpark"

    def required(self) -> Shapes:
        d, h = self.hidden_size, self.target_hidden_size
        shapes: Shapes = {"fc.weight": (d, self.states * h), "hidden_norm.weight": (d,), "norm.weight": (d,)}
        for layer in range(self.layers):
            shapes |= dict(self._layer(f"layers.{layer}"))
        if d != h:
            shapes |= self._embedding()
        if d != h or self.has_own_vocabulary:
            shapes |= self._head()
        if self.has_own_vocabulary:
            shapes["d2t"] = (self.draft_vocab_size,)
        if self.markov_rank is not None:
            shapes["markov_head.markov_w1.weight"] = (self.vocab_size, self.markov_rank)
            shapes["markov_head.markov_w2.weight"] = (self.draft_vocab_size, self.markov_rank)
        if self.second is not None:
            shapes |= self.second.selector(self.vocab_size, d)
        return shapes

    def optional(self) -> Shapes:
        """Without them the drafter takes the target's, or nothing reads them."""
        shapes = self._embedding() | self._head() | {"t2d": (self.vocab_size,)}
        if self.confidence_size is not None:
            shapes |= {"confidence_head.proj.weight": (1, self.confidence_size), "confidence_head.proj.bias": (1,)}
        return shapes

    def meaning(self, name: str) -> str | None:
        if name == "mask_hidden":
            return "is a hidden state of mask tokens; DFlash drafters have the embedding of the token mask_token_id"
        if name.startswith("markov_head."):
            return "belongs to a DSpark drafter; method 'dspark-tree' reads them"
        if name.startswith("candidate_selector."):
            return "belongs to a drafter of DFlash's second kind, whose architecture is DFlash2DraftModel"
        if name.startswith("confidence_head."):
            return "is read only where config.json has enable_confidence_head = true"
        return meaning_of_any(name)

    @property
    def has_own_vocabulary(self) -> bool:
        return self.draft_vocab_size != self.vocab_size

    def _embedding(self) -> Shapes:
        return {"embed_tokens.weight": (self.vocab_size, self.hidden_size)}

    def _head(self) -> Shapes:
        return {"lm_head.weight": (self.draft_vocab_size, self.hidden_size)}

    def _layer(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        d, m, q, kv = self.hidden_size, self.mlp_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = {"q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, q)}
        for name, shape in attention.items():
            yield f"{prefix}.self_attn.{name}.weight", shape
            if self.bias:
                yield f"{prefix}.self_attn.{name}.bias", shape[:1]
        if self.sinks:
            yield f"{prefix}.self_attn.attention_sink_bias", (self.heads,)
        for name in ("q_norm", "k_norm"):
            yield f"{prefix}.self_attn.{name}.weight", (self.head_dim,)
        for name, shape in {"gate_proj": (m, d), "up_proj": (m, d), "down_proj": (d, m)}.items():
            yield f"{prefix}.mlp.{name}.weight", shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", (d,)
        if self.second is not None:
            for name in ("attention_conv", "mlp_conv"):
                yield from self.second.convolution(f"{prefix}.{name}", d)
