"""EAGLE-3's drafter (Li et al., arXiv 2503.01840) in plain torch.

Input ``s`` of a sequence pairs hidden states of position ``s``, the target's from three layers or this drafter's own
from the step before, with the embedding of token ``s + 1``; of output ``s`` the head makes the logits of token
``s + 2``. The embedding is the target's, and not in the drafter. So is the head, unless the drafter has its own, which
may score some of the target's tokens only. Module names are those of the released checkpoints, after vLLM's renaming.

Shapes: ``B`` sequences, ``L`` inputs, ``d`` hidden size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vllm_specext.methods.layers import Attention, GatedMLP, RMSNorm, Rotary
from vllm_specext.training.eagle3.shape import STATES, Eagle3Shape
from vllm_specext.training.own_head import OutputLayer, OwnHead


class Layer(nn.Module):
    """A Llama layer whose attention reads the embedding and the hidden state side by side."""

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        d, eps = shape.hidden_size, shape.rms_norm_eps
        rotary = Rotary(shape.rope_theta)
        self.input_layernorm = RMSNorm(d, eps)
        self.hidden_norm = RMSNorm(d, eps)
        self.self_attn = Attention(2 * d, shape.heads, shape.kv_heads, shape.head_dim, rotary, out_width=d)
        self.post_attention_layernorm = RMSNorm(d, eps)
        self.mlp = GatedMLP(d, shape.mlp_size)
        self.norm_before_residual = shape.norm_before_residual

    def residual(self, hidden: Tensor) -> Tensor:
        """What attention's output is added to."""
        added: Tensor = self.hidden_norm(hidden) if self.norm_before_residual else hidden
        return added

    def fuse(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        """What attention reads, ``[B, L, 2 d]``, of both, ``[B, L, d]``."""
        return torch.cat((self.input_layernorm(embeddings), self.hidden_norm(hidden)), dim=-1)

    def finish(self, residual: Tensor) -> Tensor:
        """The part after attention."""
        finished: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return finished


class Eagle3Drafter(nn.Module):
    def __init__(self, shape: Eagle3Shape) -> None:
        """With torch's default initialisation."""
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(STATES * shape.hidden_size, shape.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(shape)])
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head: OutputLayer | None = None
        if shape.draft_vocab_size is not None:
            self.lm_head = OutputLayer(shape.hidden_size, shape.draft_vocab_size, bias=False)
        self.d2t: Tensor | None
        self.register_buffer("d2t", _no_offsets(shape) if shape.has_own_vocabulary else None)

    def own_head(self) -> OwnHead | None:
        """``None`` where it has the target's."""
        if self.lm_head is None:
            return None
        rows = torch.arange(len(self.lm_head.weight), device=self.lm_head.weight.device)
        return OwnHead(self.lm_head.weight, rows if self.d2t is None else rows + self.d2t)

    @property
    def layer(self) -> Layer:
        (layer,) = self.layers
        assert isinstance(layer, Layer)
        return layer


def new_eagle3_drafter(
    shape: Eagle3Shape,
    norm: Tensor | None = None,
    seed: int = 0,
    head: Tensor | None = None,
    tokens: Sequence[int] | None = None,
) -> Eagle3Drafter:
    """An untrained drafter, the same one for the same ``seed``. ``norm`` ``[d]`` are the weights of the target's last
    norm, with which the drafter's begins. One with an output layer of its own begins with rows of the target's
    ``head`` ``[V, d]``: of the ``tokens`` that it scores, by default of all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Eagle3Drafter(shape)
    if norm is not None:
        model.norm.weight.data.copy_(norm)
    if model.lm_head is not None:
        assert head is not None
        scored = torch.arange(shape.vocab_size) if tokens is None else torch.tensor(tokens)
        model.lm_head.weight.data.copy_(head[scored])
        if model.d2t is not None:
            model.d2t.copy_(scored - torch.arange(len(scored)))
    return model


def _no_offsets(shape: Eagle3Shape) -> Tensor:
    return torch.zeros(shape.draft_vocab_size or 0, dtype=torch.int64)
