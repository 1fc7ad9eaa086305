"""EAGLE-3 over whole sequences at once: training passes and simulated chains, in which the drafter reads its own
features. Shapes are those of the model: ``[B, L, d]`` features, ``[B, L, 3 d]`` hidden states of the target's layers.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional as F

from vllm_specext.training.chains import greedy_chains
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.packed_attention import Layout, Passes, later_inputs


def training_passes(
    model: Eagle3Drafter, embeddings: Tensor, states: Tensor, layout: Layout, count: int
) -> Iterator[Tensor]:
    """The head's inputs ``[B, L, d]`` in passes 1 to ``count`` over the same ``embeddings`` ``[B, L, d]``; pass ``n``
    reads what the ``n``-th step of a chain would (the paper's training-time test). ``states`` ``[B, L, 3 d]`` are the
    target's."""
    layer = model.layer
    passed = Passes(layer.self_attn, layout)
    first = hidden = model.fc(states)
    for _ in range(count):
        output = layer.finish(layer.residual(hidden) + passed.attend(layer.fuse(hidden, embeddings)))
        yield model.norm(output)
        hidden = later_inputs(first, output, layout)


def simulate_chains(
    model: Eagle3Drafter, embedding: Tensor, head: Tensor, token_ids: Tensor, states: Tensor, length: int
) -> Tensor:
    """The greedy chain of ``length`` tokens that would be drafted after each input: ``[B, L, length]``.

    Input ``s`` pairs the target's ``states[:, s]`` ``[B, L, 3 d]`` with ``token_ids[:, s]``, the token after it.
    ``embedding`` and ``head`` ``[V, d]`` are the target's, of which the second is for a drafter that has none.
    """
    layer, own = model.layer, model.own_head()
    scoring, tokens = (head, None) if own is None else own

    def read(features: Tensor, ids: Tensor, _: Tensor) -> Tensor:
        return layer.fuse(features, F.embedding(ids, embedding))

    def finish(features: Tensor, _: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        output = layer.finish(layer.residual(features) + attended)
        return model.norm(output), output

    return greedy_chains(layer.self_attn, read, finish, scoring, token_ids, model.fc(states), length, tokens)
