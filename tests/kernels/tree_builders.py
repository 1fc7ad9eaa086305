"""The drafts of every builder of trees, written to the request slots that verification reads them from.

Tokens come from three, token 0 among them, which is what padding holds: a walk that reaches padding is led on by it.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from torch import Tensor

from vllm_specext.engine.requests import Drafting
from vllm_specext.engine.tree_growth import Grown, TreeGrower
from vllm_specext.engine.trees import TreeStates
from vllm_specext.methods.swift.candidates import draft_tree
from vllm_specext.methods.swift.speculator import SwiftSpeculator
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.expansion import Expansion

VOCABULARY = 3
SHAPE = TreeShape(nodes=24, levels=4, top_k=3)
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
    everyone = np.arange(len(trees.kinds))
    return SimpleNamespace(idx_mapping=torch.from_numpy(everyone), idx_mapping_np=everyone, num_reqs=len(everyone))


def bare(cls: type, **attributes: Any) -> Any:
    made = cls.__new__(cls)
    vars(made).update({"device": torch.device("cpu")} | attributes)
    return made


def expanded(random: torch.Generator, requests: int, levels: int) -> Expansion:
    growing = Expansion(*best(random, requests), levels)
    for _ in range(levels - 1):
        growing.grow(*best(random, requests, VOCABULARY))
    return growing


def grown(trees: TreeStates, random: torch.Generator, nodes: int) -> Draft:
    """GRIFFIN and MoA, trees for all."""
    trees.kinds[:] = Drafting.TREE
    growing = expanded(random, len(trees.kinds), SHAPE.levels)
    tokens = bare(TreeGrower, trees=trees).keep_trees(batch_of(trees), Grown(growing, *growing.tree(nodes)))
    return Draft(tokens, [nodes] * len(trees.kinds))


def grown_for_some(trees: TreeStates, random: torch.Generator, nodes: int) -> Draft:
    """GRIFFIN and MoA, chains for every second request."""
    trees.kinds[:] = Drafting.TREE
    trees.kinds[::2] = Drafting.CHAIN
    growing = expanded(random, len(trees.kinds), SHAPE.levels)
    tokens = bare(TreeGrower, trees=trees).keep_trees(batch_of(trees), Grown(growing, *growing.tree(nodes)))
    own = [min(nodes, SHAPE.levels) if kind == Drafting.CHAIN else nodes for kind in trees.kinds]
    return Draft(tokens, own)


def chains(trees: TreeStates, random: torch.Generator, nodes: int) -> Draft:
    """GRIFFIN and MoA, chains for all, padded to what the scheduler counts on."""
    length = min(2, nodes)
    tokens = torch.zeros(len(trees.kinds), nodes, dtype=torch.int64)
    tokens[:, :length] = torch.randint(VOCABULARY, (len(trees.kinds), length), generator=random)
    bare(TreeGrower, trees=trees).keep_chains(batch_of(trees), length, nodes)
    return Draft(tokens, [length] * len(tokens))


def swift(trees: TreeStates, random: torch.Generator, nodes: int) -> Draft:
    """SWIFT, chains for every second request."""
    trees.kinds[:] = Drafting.TREE
    trees.kinds[::2] = Drafting.CHAIN
    requests = len(trees.kinds)
    tokens, log_probs = best(random, requests, SHAPE.levels)
    sampled = torch.rand(requests, generator=random) < 0.5
    tree = draft_tree(tokens, log_probs, sampled=sampled, confidence=0.5, nodes=nodes, max_levels=trees.shape.levels)
    drafted = tree.tokens.clone()
    speculator = bare(SwiftSpeculator, trees=trees)
    sizes = speculator._keep(batch_of(trees), drafted, nodes, tokens, tree.topology, tree.num_nodes)
    return Draft(drafted, sizes[:, 0].tolist())


BUILDERS: dict[str, Build] = {
    "grown": grown, "grown for some": grown_for_some, "chains": chains, "swift": swift
}  # fmt: skip
