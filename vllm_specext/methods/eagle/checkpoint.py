"""The parameters of vLLM's classes of EAGLE drafters, as checkpoints of SafeAILab, SpecForge and speculators name
them."""

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_specext.methods.checkpoints import Shapes
from vllm_specext.methods.stock.checkpoint import MASK_HIDDEN, meaning_of_any
from vllm_specext.methods.stock.mask_token import P_EAGLE


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of multi-head latent attention (MLA), by the names of ``config.json``."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def parameters(self, reads: int, heads: int, hidden_size: int) -> tuple[Shapes, Shapes]:
        """Of attention over rows of ``reads`` numbers: matrices, and norms."""
        queries, rank = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim), self.kv_lora_rank
        sizes: Shapes = {
            "q_a_proj": (self.q_lora_rank, reads),
            "q_b_proj": (queries, self.q_lora_rank),
            "kv_a_proj_with_mqa": (rank + self.qk_rope_head_dim, reads),
            "kv_b_proj": (heads * (self.qk_nope_head_dim + self.v_head_dim), rank),
            "o_proj": (hidden_size, heads * self.v_head_dim),
        }
        return sizes, {"q_a_layernorm": (self.q_lora_rank,), "kv_a_layernorm": (rank,)}


@dataclass(frozen=True)
class DrafterShape:
    """The parameters that vLLM's class of a drafter has."""

    is_eagle3: bool
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    states: int
    """Hidden states of the target that ``fc`` reads side by side; for EAGLE-1 one, beside an embedding."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    input_norm: bool = False
    fc_norm: bool = False
    at_once: bool = False
    """Whether it drafts all positions at once (P-EAGLE)."""
    latent: LatentAttention | None = None
    """In the place of keys and values for each head."""

    def required(self) -> Shapes:
        d, h = self.hidden_size, self.target_hidden_size
        shapes: Shapes = {"fc.weight": (d, self.states * h if self.is_eagle3 else h + d)}
        for layer in range(self.layers):
            shapes |= dict(self._layer(layer))
        if self.is_eagle3:
            shapes["norm.weight"] = (d,)
        if self.input_norm:
            shapes["input_norm.weight"] = (self.states * h,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{state}.weight": (h,) for state in range(self.states)}
        if self.at_once:
            shapes[MASK_HIDDEN] = (1, self.states * h)
        if d != h:
            shapes |= self._embedding()
        if d != h or self.has_own_vocabulary:
            shapes |= self._head()
        if self.has_own_vocabulary:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes

    def optional(self) -> Shapes:
        """Without them the drafter takes the target's, or nothing reads them."""
        shapes = self._embedding()
        if self.is_eagle3:
            shapes |= self._head() | {"t2d": (self.vocab_size,)}
            shapes |= {f"layers.{layer}.hidden_norm.weight": (self.hidden_size,) for layer in range(1, self.layers)}
        return shapes

    def meaning(self, name: str) -> str | None:
        if name == MASK_HIDDEN:
            return f"says that the drafter {P_EAGLE}"
        if name == "input_norm.weight":
            return "is read only where config.json has norm_before_fc = true"
        if name.startswith("fc_norm."):
            return "is read only where config.json has fc_norm = true, for each of the target's states that fc reads"
        if name == "fc.bias" and not self.is_eagle3:
            return "is a bias that vLLM's class does not have, and would leave out; method 'griffin' reads it"
        return meaning_of_any(name)

    @property
    def kind(self) -> str:
        return "EAGLE-3" if self.is_eagle3 else "EAGLE"

    @property
    def has_own_vocabulary(self) -> bool:
        return self.draft_vocab_size != self.vocab_size

    def _embedding(self) -> Shapes:
        return {"embed_tokens.weight": (self.vocab_size, self.hidden_size)}

    def _head(self) -> Shapes:
        return {"lm_head.weight": (self.draft_vocab_size, self.hidden_size)}

    def _layer(self, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        d, m, is_first = self.hidden_size, self.mlp_size, index == 0
        attention, attention_norms = self._attention(2 * d if self.is_eagle3 and is_first else d)
        sizes = {f"self_attn.{name}": shape for name, shape in attention.items()}
        sizes |= {"mlp.gate_proj": (m, d), "mlp.up_proj": (m, d), "mlp.down_proj": (d, m)}
        with_bias = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] if self.qkv_bias else []
        with_bias += ["self_attn.o_proj"] if self.o_bias else []
        with_bias += [name for name in sizes if name.startswith("mlp.")] if self.mlp_bias else []
        norms = {f"self_attn.{name}": shape for name, shape in attention_norms.items()}
        norms["post_attention_layernorm"] = (d,)
        if self.is_eagle3 or not is_first:
            norms["input_layernorm"] = (d,)
        if self.is_eagle3 and is_first:
            norms["hidden_norm"] = (d,)
        prefix = f"layers.{index}"
        yield from ((f"{prefix}.{name}.weight", shape) for name, shape in sizes.items())
        yield from ((f"{prefix}.{name}.bias", sizes[name][:1]) for name in with_bias)
        yield from ((f"{prefix}.{name}.weight", shape) for name, shape in norms.items())

    def _attention(self, reads: int) -> tuple[Shapes, Shapes]:
        if self.latent is not None:
            return self.latent.parameters(reads, self.heads, self.hidden_size)
        q, kv, norm = self.heads * self.head_dim, self.kv_heads * self.head_dim, (self.head_dim,)
        sizes: Shapes = {"q_proj": (q, reads), "k_proj": (kv, reads), "v_proj": (kv, reads)}
        return sizes | {"o_proj": (self.hidden_size, q)}, {"q_norm": norm, "k_norm": norm} if self.qk_norm else {}
