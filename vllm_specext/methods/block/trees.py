"""Trees of what a block drafter gives for all positions at once.

Shapes: ``R`` requests, ``L`` levels, ``k`` tokens kept of a position, ``d`` hidden size, ``V`` tokens of the drafter.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.kernels.best_tokens import best_tokens
from vllm_specext.kernels.tree_expansion import expansion
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.marginals import best_tree

MakeTree = Callable[[Any, Tensor, Tensor, Tensor, TreeShape, int], TreeDraft]
"""Makes trees of a drafter's ``model`` from its features ``[R, L, d]`` of the positions, the roots' tokens ``[R]``, the
sharpness of their probabilities ``[R]`` and the trees' shape; at most so many tokens of a position are candidates."""


def of_marginals(
    model: Any, features: Tensor, roots: Tensor, sharpness: Tensor, shape: TreeShape, most: int
) -> TreeDraft:
    """DFlash: no position knows what is drafted at another, and the most likely paths are found at once."""
    requests, levels, _ = features.shape
    top_k = 1 if shape.top_k == 1 else most
    sharp = sharpness[:, None].expand(-1, levels).flatten()
    best, log_probs = best_tokens(model.compute_logits(features.flatten(0, 1)), top_k, sharp)
    best, log_probs = (drafted.view(requests, levels, top_k) for drafted in (best, log_probs))
    tokens, topology, expected = best_tree(best, log_probs, shape.nodes)
    return TreeDraft(tokens, topology, lambda: best[:, :, 0], min(levels, shape.nodes), expected=expected)


def of_markov_head(
    model: Any, features: Tensor, roots: Tensor, sharpness: Tensor, shape: TreeShape, most: int
) -> TreeDraft:
    """DSpark: to a position's logits a bias is added that the token before it makes. So trees grow level by level,
    without a further pass of the drafter."""
    requests, levels, _ = features.shape
    base = model.compute_draft_logits(features.flatten(0, 1)).view(requests, levels, -1)

    def best(level: int, parents: Tensor) -> tuple[Tensor, Tensor]:
        """Of the children of nodes ``[R, q]``: tokens of the target and log-probabilities ``[R, q, k]``."""
        bias = model.markov_bias(model.markov_embed(parents.flatten())).view(*parents.shape, -1)
        tokens, log_probs = best_tokens(
            (base[:, level, None] + bias).flatten(0, 1), shape.top_k, sharpness[:, None].expand_as(parents).flatten()
        )
        tokens = model.map_draft_to_target(tokens)
        return tokens.view(*parents.shape, -1), log_probs.view(*parents.shape, -1)

    tokens, log_probs = best(0, roots[:, None])
    growing = expansion(tokens[:, 0], log_probs[:, 0], shape.depth)
    for level in range(1, shape.depth):
        growing.grow(*best(level, growing.frontier.tokens))
    tree, topology, expected = growing.tree(shape.nodes)
    return TreeDraft(tree, topology, growing.chain, min(shape.depth, shape.nodes), expected=expected)


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

    def best(level: int, parents: Tensor) -> tuple[Tensor, Tensor]:
        """Of the children of the candidates at the places ``parents`` ``[R, q]``: tokens and log-probabilities
        ``[R, q, k]``."""
        of_parents = scores[:, level].gather(1, parents[..., None].expand(-1, -1, scores.shape[3]))
        sharp = sharpness[:, None].expand_as(parents).flatten()
        places, log_probs = best_tokens(of_parents.flatten(0, 1), shape.top_k, sharp)
        places, log_probs = (of_all.view(*parents.shape, -1) for of_all in (places, log_probs))
        return candidates[:, level].gather(1, places.flatten(1)).view_as(places), log_probs

    tokens, log_probs = best(0, roots.new_zeros(requests, 1, dtype=torch.int64))
    growing = expansion(tokens[:, 0], log_probs[:, 0], shape.depth)
    for level in range(1, shape.depth):
        is_parent = candidates[:, level - 1, None] == growing.frontier.tokens[..., None]
        growing.grow(*best(level, is_parent.int().argmax(dim=-1)))
    tree, topology, expected = growing.tree(shape.nodes)
    return TreeDraft(tree, topology, growing.chain, min(shape.depth, shape.nodes), expected=expected)
