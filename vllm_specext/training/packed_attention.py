"""Attention over packed rows of text, a few queries at a time, so that no ``[B, H, L, L]`` tensor lives.

Every query sees a range of shared keys, which lies in its own row, and a few keys of its own. Scores of a chunk of
queries are made over the keys that they can see, and made again in the backward pass. ``own_keys.py`` is the
specification, with masks and all scores at once.

``B`` packs of ``L`` slots; heads are ``[B, H, L, D]``, keys and values ``[B, Hkv, L, D]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vllm_specext.methods.layers import KV, Attention

CHUNK = 512
"""Queries, of all packs together, whose scores live at the same time."""


@dataclass(frozen=True)
class Layout:
    """Where rows of text lie in packs. Padding at a pack's end is a row too."""

    positions: Tensor
    """``[B, L]`` int64: every slot's place in its row."""
    begins: tuple[tuple[int, ...], ...]
    """Of every pack, the slots at which rows begin, in order. They are known on the host, which need not wait."""

    @classmethod
    def of(cls, lengths: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> "Layout":
        """``lengths`` of every pack's rows, padding included; the same sum in each pack."""
        positions = torch.stack([torch.cat([torch.arange(n) for n in rows]) for rows in lengths]).to(device)
        begins = [torch.tensor([0, *rows]).cumsum(0)[:-1].tolist() for rows in lengths]
        return cls(positions, tuple(tuple(pack) for pack in begins))

    @property
    def slots(self) -> Tensor:
        """``[1, L]``: 0, 1, 2, ..."""
        return torch.arange(self.positions.shape[1], device=self.positions.device)[None]

    @property
    def first(self) -> Tensor:
        """``[B, L]``: the slot at which every slot's row begins."""
        return self.slots - self.positions

    @property
    def later(self) -> Tensor:
        """``[B, L]``: how many slots of the row come after."""
        length = self.positions.shape[1]
        counts = [torch.tensor([*pack[1:], length]) - torch.tensor(pack) for pack in self.begins]
        lengths = [torch.repeat_interleave(count, count) for count in counts]
        return torch.stack(lengths).to(self.positions.device) - 1 - self.positions


class Span(NamedTuple):
    """Keys and values of which every query sees those from slot ``first`` to slot ``last`` ``[B, L]``, both included.
    That is between the beginning of its row and itself, or nothing."""

    kv: KV
    first: Tensor
    last: Tensor


class Own(NamedTuple):
    """One key and value of each query's own, which it sees where ``visible`` ``[B, L]`` is true."""

    kv: KV
    visible: Tensor


def attend(
    attention: Attention,
    queries: Tensor,
    spans: Sequence[Span],
    own: Sequence[Own],
    layout: Layout,
    zeros: Tensor | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Attention output ``[B, L, d]`` of ``queries`` ``[B, H, L, D]``, each of which sees at least one key. ``zeros``
    ``[B, L]``: so many keys with a score of zero and no value take part in a query's softmax."""
    packs, _, length, _ = queries.shape
    size = max(1, chunk // packs)
    parts = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        # No query of the chunk sees a key before the beginning of a row that the chunk's first queries are in.
        begin = min(max(slot for slot in begins if slot <= start) for begins in layout.begins)
        keys, at = slice(begin, stop), slice(start, stop)
        seen = [_seen(span, at, keys) for span in spans] + [one.visible[:, at, None] for one in own]
        tensors = [queries[:, :, at]]
        tensors += [x[:, :, keys] for span in spans for x in span.kv]
        tensors += [x[:, :, at] for one in own for x in one.kv]
        run = partial(_attend, len(spans), torch.cat(seen, dim=-1), None if zeros is None else zeros[:, at])
        if torch.is_grad_enabled():
            parts.append(checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(run(*tensors))
    return attention.merge(torch.cat(parts, dim=2))


def _seen(span: Span, at: slice, keys: slice) -> Tensor:
    """``[B, queries, keys]``"""
    slots = torch.arange(keys.start, keys.stop, device=span.first.device)
    return (slots >= span.first[:, at, None]) & (slots <= span.last[:, at, None])


def _attend(spans: int, seen: Tensor, zeros: Tensor | None, queries: Tensor, *keys_values: Tensor) -> Tensor:
    """``queries`` ``[B, H, c, D]`` over keys and values in turns: of ``spans`` spans ``[B, Hkv, s, D]``, and of the
    queries' own ``[B, Hkv, c, D]``. ``seen`` ``[B, c, all keys]``. Returns ``[B, H, c, D]``."""
    kvs = list(zip(keys_values[::2], keys_values[1::2], strict=True))
    shared, own = kvs[:spans], kvs[spans:]
    packs, heads, count, size = queries.shape
    kv_heads = kvs[0][0].shape[1]
    # The heads of a group read the same keys: they are rows of one product.
    by_group = queries.reshape(packs, kv_heads, heads // kv_heads, count, size)
    scores = [by_group.flatten(2, 3) @ keys.transpose(2, 3) for keys, _ in shared]
    scores += [(by_group * keys[:, :, None]).sum(dim=-1).flatten(2)[..., None] for keys, _ in own]
    logits = (torch.cat(scores, dim=-1) / size**0.5).float().view(packs, heads, count, -1)
    logits = logits.masked_fill(~seen[:, None], float("-inf"))
    if zeros is not None:
        logits = torch.cat((logits, zeros.float().log()[:, None, :, None].expand(-1, heads, -1, -1)), dim=-1)
    weights = logits.softmax(dim=-1)[..., : seen.shape[-1]].to(kvs[0][1].dtype)
    widths = [keys.shape[2] for keys, _ in shared] + [1] * len(own)
    parts = weights.reshape(packs, kv_heads, heads // kv_heads * count, -1).split(widths, dim=-1)
    result = sum(part @ values for part, (_, values) in zip(parts, shared, strict=False))
    result = result.view_as(by_group)
    for part, (_, values) in zip(parts[spans:], own, strict=True):
        result = result + part.view(packs, kv_heads, -1, count, 1) * values[:, :, None]
    return result.reshape(packs, heads, count, size)


class Passes:
    """The attention of training passes 1, 2, ... over the same packs.

    Pass ``n`` stands, at each position, for the ``n``-th step of a chain: keys and values of the most recent ``n - 1``
    positions are those that the passes before made of the drafter's own features, the others the first pass's.
    """

    def __init__(self, attention: Attention, layout: Layout) -> None:
        self.attention, self.layout = attention, layout
        self.first, self.slots = layout.first, layout.slots
        self.made: list[KV] = []

    def attend(self, hidden: Tensor, *, zero_score: bool = False) -> Tensor:
        """Attention output ``[B, L, d]`` of the next pass, whose inputs are ``hidden`` ``[B, L, d]``; ``zero_score``:
        keys in the row's future enter the softmax with a score of zero."""
        positions = self.layout.positions
        self.made.append(self.attention.keys_values(hidden, positions))
        # Query i's own key from the pass that was `back` passes ago belongs to position i - back; rolling brings it to
        # slot i.
        backs = list(reversed(range(len(self.made) - 1)))
        own = [Own(_roll(kv, back), positions >= back) for kv, back in zip(self.made[1:], backs, strict=True)]
        shared = Span(self.made[0], self.first, (self.slots - len(backs)).expand_as(positions))
        queries = self.attention.queries(hidden, positions)
        return attend(self.attention, queries, [shared], own, self.layout, self.layout.later if zero_score else None)


def _roll(kv: KV, back: int) -> KV:
    return kv[0].roll(back, dims=2), kv[1].roll(back, dims=2)


def later_inputs(first: Tensor, made: Tensor, layout: Layout) -> Tensor:
    """What the next pass reads: of every position what was ``made`` ``[B, L, d]`` at the one before, and at a row's
    beginning what it read ``first`` ``[B, L, d]``."""
    shifted = F.pad(made[:, :-1], (0, 0, 1, 0))
    return torch.where((layout.positions == 0)[..., None], first, shifted)
