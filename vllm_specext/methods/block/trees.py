"""Trees of what a block drafter gives for all positions at once.

Shapes: ``R`` requests, ``L`` levels, ``k`` tokens kept of a position, ``d`` hidden size, ``V`` tokens of the drafter.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_specext.engine.drafting.marginals import Best, best_of, tree_of
from vllm_specext.engine.drafting.several_depths import draft_at
from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.kernels.best_tokens import best_tokens
from vllm_specext.kernels.tree_expansion import expansion
from vllm_specext.tree.budget import TreeShape

MakeTree = Callable[[Any, Tensor, Tensor, Tensor, TreeShape, int], TreeDraft]
"""Makes trees of a drafter's ``model`` from its features ``[R, L, d]`` of the positions, the roots' tokens ``[R]``, the
sharpness of their probabilities ``[R]`` and the trees' shape; at most so many tokens of a position are candidates."""


def of_marginals(
    model: Any, features: Tensor, roots: Tensor, sharpness: Tensor, shape: TreeShape, most: int
) -> TreeDraft:
    """DFlash: no position knows what is drafted at another, and the most likely paths are found at once."""
    top_k = 1 if shape.top_k == 1 else most
    best = best_of(features, top_k, sharpness, lambda rows, k, sharp: best_tokens(model.compute_logits(rows), k, sharp))
    return tree_of(best, shape)


def of_markov_head(
    model: Any, features: Tensor, roots: Tensor, sharpness: Tensor, shape: TreeShape, most: int
) -> TreeDraft:
    """DSpark: to a position's logits a bias is added that the token before it makes. So trees grow level by level,
    without a further pass of the drafter."""
    requests, levels, _ = features.shape
    base = model.compute_draft_logits(features.flatten(0, 1)).view(requests, levels, -1)

    def best(level: int, parents: Tensor) -> Best:
        """Of the children of nodes ``[R, q]``: tokens of the target and log-probabilities ``[R, q, k]``."""
        bias = model.markov_bias(model.markov_embed(parents.flatten())).view(*parents.shape, -1)
        tokens, log_probs = best_tokens(
            (base[:, level, None] + bias).flatten(0, 1), shape.top_k, sharpness[:, None].expand_as(parents).flatten()
        )
        tokens = model.map_draft_to_target(tokens)
        return tokens.view(*parents.shape, -1), log_probs.view(*parents.shape, -1)

    return _by_level(best, roots[:, None], lambda level, tokens: tokens, shape)


def of_selector(
    model: Any, features: Tensor, roots: Tensor, sharpness: Tensor, shape: TreeShape, most: int
) -> TreeDraft:
    """DFlash2: of each position the most likely tokens are candidates, and each of them has a score for each candidate
    of the position before. So trees grow level by level, without a further pass of the drafter."""
    requests, levels, _ = features.shape
    candidates, logits = model.compute_candidates(features.flatten(0, 1))
    candidates, logits = (of_all.view(requests, levels, -1) for of_all in (candidates, logits))
    # Not compiled on its own, as vLLM has it: the trees around it are not either.
    scores = model.model.candidate_selector.forward(candidates, logits, features, roots)

    def best(level: int, parents: Tensor) -> Best:
        """Of the children of the candidates at the places ``parents`` ``[R, q]``: tokens and log-probabilities
        ``[R, q, k]``."""
        of_parents = scores[:, level].gather(1, parents[..., None].expand(-1, -1, scores.shape[3]))
        sharp = sharpness[:, None].expand_as(parents).flatten()
        places, log_probs = best_tokens(of_parents.flatten(0, 1), shape.top_k, sharp)
        places, log_probs = (of_all.view(*parents.shape, -1) for of_all in (places, log_probs))
        return candidates[:, level].gather(1, places.flatten(1)).view_as(places), log_probs

    def places_of(level: int, tokens: Tensor) -> Tensor:
        """Of the ``tokens`` of a frontier among the candidates of the position before ``level``."""
        return (candidates[:, level - 1, None] == tokens[..., None]).int().argmax(dim=-1)

    return _by_level(best, roots.new_zeros(requests, 1, dtype=torch.int64), places_of, shape)


def _by_level(
    best: Callable[[int, Tensor], Best], root: Tensor, parents: Callable[[int, Tensor], Tensor], shape: TreeShape
) -> TreeDraft:
    """Grow a tree from what the ``best`` children are at a level: of the ``root`` ``[R, 1]``, and of the ``parents``
    that the tokens ``[R, q]`` of a frontier are to it."""
    tokens, log_probs = best(0, root)
    growing = expansion(tokens[:, 0], log_probs[:, 0], shape.depth)
    for level in range(1, shape.depth):
        growing.grow(*best(level, parents(level, growing.frontier.tokens)))
    return draft_at(shape.depth, growing, shape.nodes)
