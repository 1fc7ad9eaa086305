"""DFlash's drafter (arXiv 2602.06036) in plain torch: the specification, and what is trained.

A block is the last token of a text and mask tokens after it. In one pass the drafter gives the distribution of each
mask token's position; all rows of a block see one another, and the text before it. Of the text it sees what the
target has made: hidden states of several of the target's layers, side by side, which ``fc`` makes one feature of a
token. In every layer keys and values of the text come from these features, those of the block from the block's own
rows. Embedding and head are the target's. Module names are those of the released checkpoints.

Shapes: ``B`` sequences, ``S`` tokens of text, ``Q`` rows of blocks, ``d`` hidden size, ``h`` the target's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from vllm_specext.methods.layers import KV, Attention, GatedMLP, RMSNorm, Rotary, extend

Attend = Callable[[Attention, Tensor, KV, KV], Tensor]
"""A layer's attention output ``[B, Q, d]`` of queries ``[B, H, Q, D]`` over keys and values of the text and of the
rows."""


@dataclass(frozen=True)
class Sizes:
    """The widths of a drafter."""

    hidden_size: int
    states_size: int
    """Of the target's hidden states side by side."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    rms_norm_eps: float
    rotary: Rotary


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        d, eps = sizes.hidden_size, sizes.rms_norm_eps
        self.input_layernorm = RMSNorm(d, eps)
        self.self_attn = Attention(d, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.rotary, qk_norm_eps=eps)
        self.post_attention_layernorm = RMSNorm(d, eps)
        self.mlp = GatedMLP(d, sizes.mlp_size)

    def forward(self, rows: Tensor, places: Tensor, text: KV, attend: Attend) -> Tensor:
        """Rows ``[B, Q, d]`` at ``places`` ``[B or 1, Q]``, given keys and values of the ``text``."""
        normed = self.input_layernorm(rows)
        own = self.self_attn.keys_values(normed, places)
        rows = rows + attend(self.self_attn, self.self_attn.queries(normed, places), text, own)
        finished: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return finished


class DFlashDrafter(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.fc = nn.Linear(sizes.states_size, sizes.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)

    def forward(self, embeddings: Tensor, places: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """The head's inputs ``[B, Q, d]``.

        ``embeddings`` ``[B, Q, d]`` of the blocks' tokens at ``places`` ``[B or 1, Q]`` of the text; the target's
        hidden ``states`` ``[B, S, states h]`` of the text from its beginning; ``mask`` bool ``[B or 1, 1, Q, S + Q]``,
        true where a row may see a token of the text, or another row.
        """
        text = self.keys_values(states, torch.arange(states.shape[1], device=states.device)[None])
        return self.draft(embeddings, places, text, lambda layer, rows, *kvs: layer.attend(rows, extend(*kvs), mask))

    def keys_values(self, states: Tensor, places: Tensor) -> list[KV]:
        """Of every layer, of a text whose tokens are at ``places`` ``[B or 1, S]``, from the target's ``states``."""
        text = self.hidden_norm(self.fc(states))
        return [cast(Layer, layer).self_attn.keys_values(text, places) for layer in self.layers]

    def draft(self, embeddings: Tensor, places: Tensor, text: Sequence[KV], attend: Attend) -> Tensor:
        """The head's inputs ``[B, Q, d]``, as ``forward``'s, with every layer's keys and values of the ``text``."""
        rows = embeddings
        for layer, past in zip(self.layers, text, strict=True):
            rows = layer(rows, places, past, attend)
        normed: Tensor = self.norm(rows)
        return normed


def blocks(anchors: Tensor, width: int, text: int) -> tuple[Tensor, Tensor]:
    """Places ``[B, A width]`` of the rows of blocks that begin with the tokens at ``anchors`` ``[B, A]``, and the mask
    ``[B, 1, A width, text + A width]`` of what they see: the ``text`` before their block, and their block."""
    batch, count = anchors.shape
    places = (anchors[..., None] + torch.arange(width, device=anchors.device)).flatten(1)
    starts = anchors.repeat_interleave(width, dim=1)[..., None]
    of_text = torch.arange(text, device=anchors.device) < starts
    block = torch.arange(count, device=anchors.device).repeat_interleave(width)
    of_block = (block[:, None] == block).expand(batch, -1, -1)
    return places, torch.cat((of_text, of_block), dim=2)[:, None]
