"""A module over whole sequences at once: training passes and simulated chains, in which it reads its own features.
Shapes are those of the model: ``[B, L, d]`` features.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional as F

from vllm_specext.training.chains import greedy_chains
from vllm_specext.training.mtp.model import MtpModule
from vllm_specext.training.packed_attention import Layout, Passes, later_inputs


def training_passes(
    model: MtpModule, embeddings: Tensor, features: Tensor, layout: Layout, count: int
) -> Iterator[Tensor]:
    """The head's inputs ``[B, L, d]`` in passes 1 to ``count`` over the same ``embeddings`` ``[B, L, d]``; pass ``n``
    reads what the ``n``-th step of a chain would. ``features`` ``[B, L, d]`` are the target's last hidden states."""
    passed = Passes(model.self_attn, layout)
    hidden = features
    for _ in range(count):
        fused = model.fuse(hidden, embeddings, layout.positions)
        made = model.finish(fused, passed.attend(fused))
        yield made
        hidden = later_inputs(features, made, layout)


def simulate_chains(
    model: MtpModule, embedding: Tensor, head: Tensor, token_ids: Tensor, features: Tensor, length: int
) -> Tensor:
    """The greedy chain of ``length`` tokens that would be drafted after each input: ``[B, L, length]``.

    Input ``s`` pairs the target's ``features[:, s]`` ``[B, L, d]`` with ``token_ids[:, s]``, the token after it.
    ``embedding`` and ``head`` ``[V, d]`` are the target's.
    """

    def read(features: Tensor, ids: Tensor, places: Tensor) -> Tensor:
        return model.fuse(features, F.embedding(ids, embedding), places)

    def finish(_: Tensor, fused: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        made = model.finish(fused, heads)
        return made, made

    return greedy_chains(model.self_attn, read, finish, head, token_ids, features, length)
