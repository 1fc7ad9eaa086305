"""MoA's drafter on the client: self-attention over the text and the tree, cross-attention over the server's rows.

Keys and values of self-attention depend on a token and its position alone, so that what was read of a text stays right
for all texts that begin like it.
"""

import asyncio

import torch
from torch import Tensor, nn

from vllm_specext.methods.layers import KV
from vllm_specext.methods.moa.checkpoint import LayerShape
from vllm_specext.methods.moa.model import DecoderLayer
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import Sampling
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.calibration import Learned, calibrate
from vllm_specext.tree.expansion import Expansion, best_tokens
from vllm_specext.tree.topology import unpack


class ClientModel(nn.Module):
    """What a client needs of the drafter and of its target."""

    def __init__(self, self_attention: DecoderLayer, cross_attention: DecoderLayer, vocabulary: int) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = self_attention, cross_attention
        # Both are the server's to compute.
        del cross_attention.self_attn.k_proj, cross_attention.self_attn.v_proj
        width = self_attention.input_layernorm.weight.shape[0]
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)


class Rows:
    """Keys and values ``[T, H, D]`` in memory that grows."""

    def __init__(self, shape: LayerShape) -> None:
        self._kept = torch.empty(2, 0, shape.kv_heads, shape.head_dim)
        self.count = 0

    def put(self, first: int, keys: Tensor, values: Tensor) -> None:
        """Keep these in the place of those from ``first`` on."""
        count = first + len(keys)
        if count > self._kept.shape[1]:
            more = self._kept.new_empty(2, 2 * count - self._kept.shape[1], *self._kept.shape[2:])
            self._kept = torch.cat((self._kept, more), dim=1)
        self._kept[0, first:count], self._kept[1, first:count] = keys, values
        self.count = count

    def kv(self, count: int) -> KV:
        """The first so many, ``[1, H, count, D]``."""
        keys, values = self._kept[:, :count].transpose(1, 2).unsqueeze(1)
        return keys, values


class MoAClientDrafter:
    """Drafts for one answer at a time. Trees have ``shape``, or fewer nodes where the server wants no more. How far the
    drafter can be trusted (``tree/calibration.py``) is learned from how the text goes on, at any temperature alike."""

    def __init__(
        self,
        model: ClientModel,
        self_shape: LayerShape,
        cross_shape: LayerShape,
        shape: TreeShape,
        learned: Learned | None = None,
    ) -> None:
        """``learned``: how far the drafter has proved to be right, which drafting changes; nothing when absent."""
        self._model, self._shapes, self._shape = model.eval(), (self_shape, cross_shape), shape
        self._learned = Learned.nothing("cpu") if learned is None else learned
        self._newest: tuple[list[int], Drafted, Tensor] | None = None
        """A text, the tree that was drafted for it, and how many tokens it was expected to have accepted."""
        self._rows, self._read = Rows(cross_shape), Rows(self_shape)
        self._text: list[int] = []
        """Whose keys and values of self-attention are kept."""

    def for_another_text(self) -> "MoAClientDrafter":
        """The same drafter, which knows nothing of the text yet."""
        return MoAClientDrafter(self._model, *self._shapes, self._shape, self._learned)

    def take(self, first: int, keys: Tensor, values: Tensor) -> int:
        first = min(first, self._rows.count)
        self._rows.put(first, keys, values)
        return self._rows.count

    async def draft(self, text: list[int], max_nodes: int) -> Drafted:
        """Nothing where the server has not told anything of the text yet."""
        return await asyncio.to_thread(self.tree, text, max_nodes)

    async def say(self, text: list[int], sampling: Sampling) -> int:
        return await asyncio.to_thread(self.next_token, text, sampling)

    @torch.inference_mode()
    def tree(self, text: list[int], max_nodes: int) -> Drafted:
        """``draft``, while nothing else is done."""
        verified = min(self._rows.count, len(text) - 1)
        if verified == 0:
            return Drafted.chain([])
        k, depth = self._shape.top_k, self._shape.depth
        sharpness = self._sharpness(text).expand(1, k)
        features = self._root(text, verified)
        growing = Expansion(*best_tokens(self._model.head(features), k, sharpness[:, 0]), levels=depth)
        own: list[KV] = []
        for level in range(depth - 1):
            ids, at = growing.frontier.tokens, torch.full((1, k), len(text) + level)
            embeddings = self._model.embedding(ids)
            own.append(self._model.self_attention.keys_values(embeddings, at))
            among = unpack(growing.frontier.visible, (level + 1) * k)[:, None]
            mask = torch.cat((among.new_ones(1, 1, k, len(text)), among), dim=3)
            hidden = self._model.self_attention.cross(embeddings, at, self._with(len(text), own), mask)
            features = self._model.cross_attention.cross(hidden, at, self._rows.kv(verified), None)
            tokens, log_probs = best_tokens(self._model.head(features), k, sharpness)
            growing.grow(tokens, log_probs)
        tokens, topology, expected = growing.tree(min(max_nodes, self._shape.nodes))
        drafted = Drafted.made(tokens[0].numpy(), topology.parents[0, 1:].numpy())
        self._newest = list(text), drafted, expected
        return drafted

    def _sharpness(self, text: list[int]) -> Tensor:
        """``[1]``, after what the ``text`` says of the tree that was drafted before."""
        accepted, expected = None, torch.zeros(1)
        if self._newest is not None:
            known, drafted, expected = self._newest
            accepted = drafted.accepted(text[len(known) :]) if text[: len(known)] == known else None
        slot, number = torch.zeros(1, dtype=torch.int64), torch.tensor([1 + (accepted or 0)])
        return calibrate(self._learned, slot, torch.zeros(1), expected, number, int(accepted is not None))

    @torch.inference_mode()
    def next_token(self, text: list[int], sampling: Sampling) -> int:
        """``say``, while nothing else is done."""
        features = self._root(text, min(self._rows.count, len(text) - 1))
        logits = self._model.head(features)[0].float()
        if not sampling.temperature:
            return int(logits.argmax())
        chooser = torch.Generator().manual_seed((sampling.seed + len(text)) % (1 << 63))
        return int(torch.multinomial((logits / sampling.temperature).softmax(0), 1, generator=chooser))

    def _root(self, text: list[int], verified: int) -> Tensor:
        """The feature ``[1, E]`` of a text's last token."""
        self._read_text(text)
        at = torch.tensor([[len(text) - 1]])
        embedding = self._model.embedding(torch.tensor([text[-1:]]))
        hidden = self._model.self_attention.cross(embedding, at, self._read.kv(len(text)), None)
        layer = self._model.cross_attention
        # Of a text of which nothing is known, attention has nothing to say.
        return (layer.cross(hidden, at, self._rows.kv(verified), None) if verified else layer.finish(hidden))[0]

    def _read_text(self, text: list[int]) -> None:
        same = 0
        for known, wanted in zip(self._text, text, strict=False):
            if known != wanted:
                break
            same += 1
        if same < len(text):
            at = torch.arange(same, len(text))[None]
            made = self._model.self_attention.keys_values(self._model.embedding(torch.tensor([text[same:]])), at)
            self._read.put(same, *(side[0].transpose(0, 1) for side in made))
            self._text = list(text)

    def _with(self, length: int, own: list[KV]) -> KV:
        """Self-attention's keys and values of a text and of the levels so far."""
        known = self._read.kv(length)
        keys, values = (torch.cat((known[side], *(kv[side] for kv in own)), dim=2) for side in range(2))
        return keys, values
