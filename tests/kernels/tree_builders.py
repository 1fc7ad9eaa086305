"""The drafts of every builder of trees, written to the request slots that verification reads them from.

Tokens come from three, token 0 among them, which is what padding holds: a walk that reaches padding is led on by it.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm.platforms import current_platform

if current_platform.is_cpu():
    # There it has to come before the V2 runner. On a GPU it would take away torch's streams and Triton's barriers.
    import vllm.v1.worker.cpu.shm  # noqa: F401

from vllm_specext.engine.drafting.tree_draft import TreeDraft, hand_over, hand_over_chains
from vllm_specext.engine.requests import Drafting
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.methods.swift.chains import of_chain
from vllm_specext.methods.swift.draft_tree import draft_tree
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.expansion import Expansion

VOCABULARY = 3
SHAPE = TreeShape(nodes=24, depth=4, top_k=3)
"""Of the largest trees."""


class Draft(NamedTuple):
    tokens: Tensor
    """``[R, N]``."""
    num_nodes: list[int]
    """Of each request, without padding."""


Build = Callable[[TreeStates, torch.Generator, int], Draft]
"""Drafts for all slots, of as many nodes as given, padding included; leaves the topology in the states."""


def states(requests: int) -> TreeStates:
    return TreeStates(SHAPE, requests, max_model_len=512, device=torch.device("cpu"))


def best(random: torch.Generator, *shape: int) -> tuple[Tensor, Tensor]:
    """All tokens in random order, and log-probabilities ``[*shape, VOCABULARY]``, best first."""
    tokens = torch.rand(*shape, VOCABULARY, generator=random).argsort(dim=-1)
    log_probs = (-3 * torch.rand(*shape, VOCABULARY, generator=random)).sort(dim=-1, descending=True).values
    return tokens, log_probs


def batch_of(trees: TreeStates) -> Any:
    everyone = np.arange(len(trees.is_chain))
    return SimpleNamespace(idx_mapping=torch.from_numpy(everyone), idx_mapping_np=everyone, num_reqs=len(everyone))


def kept(draft: TreeDraft, trees: TreeStates, drafting: np.ndarray) -> TreeDraft:
    """Hand the draft over to the steps of a model state whose requests may be drafted this."""
    model_state = SimpleNamespace(drafting=drafting, steps=SimpleNamespace(trees=trees))
    return hand_over(draft, batch_of(trees), model_state)


def drafting(trees: TreeStates, *, chains: bool) -> np.ndarray:
    """Trees for all requests, or chains for every second one."""
    made = np.full(len(trees.is_chain), Drafting.TREE)
    if chains:
        made[::2] = Drafting.CHAIN
    return made


def expanded(random: torch.Generator, requests: int, levels: int) -> Expansion:
    growing = Expansion(*best(random, requests), levels)
    for _ in range(levels - 1):
        growing.grow(*best(random, requests, VOCABULARY))
    return growing


def grown(trees: TreeStates, random: torch.Generator, nodes: int, *, chains: bool = False) -> Draft:
    """GRIFFIN, EAGLE and MoA, trees for all."""
    allowed = drafting(trees, chains=chains)
    growing = expanded(random, len(allowed), SHAPE.depth)
    length = min(nodes, SHAPE.depth)
    tokens, topology, expected = growing.tree(nodes)
    draft = TreeDraft(tokens, topology, growing.chain, length, expected=expected)
    own = [length if kind == Drafting.CHAIN else nodes for kind in allowed]
    return Draft(kept(draft, trees, allowed).tokens, own)


def grown_for_some(trees: TreeStates, random: torch.Generator, nodes: int) -> Draft:
    """The same, chains for every second request."""
    return grown(trees, random, nodes, chains=True)


def chains(trees: TreeStates, random: torch.Generator, nodes: int) -> Draft:
    """GRIFFIN, EAGLE and MoA, chains for all, padded to what the scheduler counts on."""
    requests, length = len(trees.is_chain), min(2, nodes)
    tokens = torch.zeros(requests, nodes, dtype=torch.int64)
    tokens[:, :length] = torch.randint(VOCABULARY, (requests, length), generator=random)
    hand_over_chains(length, nodes, batch_of(trees), trees)
    return Draft(tokens, [length] * requests)


def swift(trees: TreeStates, random: torch.Generator, nodes: int) -> Draft:
    """SWIFT, chains for every second request."""
    requests = len(trees.is_chain)
    tokens, log_probs = best(random, requests, SHAPE.depth)
    sampled = torch.rand(requests, generator=random) < 0.5
    tree = draft_tree(tokens, log_probs, sampled=sampled, confidence=0.5, nodes=nodes, max_depth=trees.shape.depth)
    draft = kept(of_chain(tree, tokens, trees.shape.depth), trees, drafting(trees, chains=True))
    assert draft.num_nodes is not None
    return Draft(draft.tokens, draft.num_nodes.tolist())


BUILDERS: dict[str, Build] = {
    "grown": grown, "grown for some": grown_for_some, "chains": chains, "swift": swift
}  # fmt: skip
