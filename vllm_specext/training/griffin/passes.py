"""GRIFFIN over whole sequences at once, where the drafter reads its own features: training passes and simulated chains.

In both, a query attends to shared keys, made from the target's features, and to a few keys of its own, made from
draft features, so that one pass over a sequence stands for a drafting step at each of its positions. Shapes are those
of the model: ``[B, L, d]`` features, ``[B, H, L, D]`` heads.
"""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor

from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.chains import greedy_chains
from vllm_specext.training.packed_attention import Layout, Passes, later_inputs

MaskedScore = Literal["-inf", "zero"]
"""The contribution of a key in the future to the softmax: nothing, or, as in the code that trained the released
checkpoints (inherited from HASS), a score of zero in the denominator and no value. Serving knows the first only."""


def training_passes(
    model: GriffinDrafter,
    token_ids: Tensor,
    features: Tensor,
    layout: Layout,
    passes: int,
    masked_score: MaskedScore = "-inf",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Predict and regress features ``[B, L, d]`` of passes 1 to ``passes`` over the same ``token_ids`` ``[B, L]``, rows
    of text in packs.

    Pass ``n`` reads, at each position, what the drafter would read in the ``n``-th step of a chain: features of its
    own for the most recent ``n - 1`` positions, the target's before. Gradients reach the weights through every pass's
    keys and values, but do not flow from one pass's input into the pass before. The passes share one autograd graph.
    """
    layer = model.layer
    embeddings = model.embed(token_ids, features.dtype)
    passed = Passes(layer.self_attn, layout)
    inputs = features
    for _ in range(passes):
        hidden = model.fuse(inputs, embeddings)
        predict, regress = layer.finish(hidden + passed.attend(hidden, zero_score=masked_score == "zero"))
        yield predict, regress
        inputs = later_inputs(features, regress.detach().to(features.dtype), layout)


def simulate_chains(model: GriffinDrafter, head: Tensor, token_ids: Tensor, features: Tensor, length: int) -> Tensor:
    """The greedy chain of ``length`` tokens that would be drafted after each input: ``[B, L, length]``.

    Input ``s`` pairs ``features[:, s]`` with ``token_ids[:, s]``, the token after it; entry ``[:, s, 0]`` is the
    drafter's proposal for the token after that. ``head`` is the target's output matrix ``[V, d]``.
    """
    layer = model.layer

    def read(features: Tensor, ids: Tensor, _: Tensor) -> Tensor:
        return model.fuse(features, model.embed(ids, features.dtype))

    def finish(_: Tensor, hidden: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        return layer.finish(hidden + attended)

    return greedy_chains(layer.self_attn, read, finish, head, token_ids, features, length)
