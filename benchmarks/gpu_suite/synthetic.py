"""Acceptance without a trained drafter: the walk is told what the target drew.

vLLM has such a mode for its own rejection sampler (``rejection_sample_method: synthetic``). For our verification this
module does the same from outside: before a walk, the target's draws on one path of the tree are replaced by the tokens
drafted there, as deep as chance wants it. What the drafter thinks of its tokens is replaced too, because a drafter with
random weights finds all tokens equally unlikely, and grows trees of two levels.
The draws cost some small launches per step, which are part of the step that is measured.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GEOMETRIC = 0.6
"""The drafter's probability of its best token; each next one has 0.4 of that of the one before."""

ENDS = 500
"""Walks end with ids below this one, another one in each row, so that drafts are seldom the same."""

RATES = {4: 0.70, 15: 0.80, 31: 0.83, 59: 0.85}
"""Assumed chance that a node of the best path is accepted after the one before it, from so many drafted tokens on.
vLLM's methods are given the same."""


def rate_for(nodes: int) -> float:
    return max((rate for least, rate in RATES.items() if least <= nodes), default=min(RATES.values()))


def unconditional(rate: float, depth: int) -> list[float]:
    """Chance that at least so many drafted tokens are accepted, when each is with ``rate``."""
    return [rate ** (level + 1) for level in range(depth)]


def draws(
    drawn: Tensor,
    drafted: Tensor,
    starts: Tensor,
    parents: Tensor,
    levels: int,
    rate: Callable[[int], float] = rate_for,
) -> Tensor:
    """``drawn`` ``[rows]``, changed so that a walk down ``parents`` ``[R, N + 1]`` accepts as many as chance wants,
    ``levels`` at most, by the ``rate`` of so many drafted tokens. Chains have the parents of a chain. A request may
    have fewer rows than its tree has."""
    rows, requests = drawn.shape[0], parents.shape[0]
    if rows == requests:
        return drawn  # nothing was drafted
    path = first_children(parents, levels)
    there = path < (starts[1:] - starts[:-1])[:, None]
    chance = torch.rand(requests, levels, device=drawn.device) < rate(rows // requests - 1)
    accepted = (chance & there[:, 1:]).cumprod(dim=1).bool()
    # What is not there is a row after the last, which is taken away again.
    at = torch.where(there, starts[:-1, None] + path, rows)
    drawn, drafted = (torch.cat((each, each[:1])) for each in (drawn, drafted))
    # A model with random weights often draws one token again and again, and its drafter drafts it: where a walk is to
    # end, it would go on by chance.
    changed = torch.where(accepted, drafted[at[:, 1:]], at[:, :-1] % ENDS)
    return drawn.scatter(0, at[:, :-1].flatten(), changed.flatten().to(drawn.dtype))[:rows]


def first_children(parents: Tensor, levels: int) -> Tensor:
    """The path from each root on which every node is its parent's first child, ``[R, levels + 1]``; past its end
    ``N + 1``. The host is not asked, and the step not kept waiting: trees of every size and chains are looked at
    alike."""
    requests, width = parents.shape
    node = torch.arange(width, device=parents.device)
    # The root and padding, which are their own parents, are nobody's children.
    parent = torch.where(parents == node, width, parents)
    child = node.new_full((requests, width + 1), width).scatter_reduce(1, parent, node.expand_as(parent), "amin")
    child[:, width] = width
    path = [node.new_zeros(requests, 1)]
    for _ in range(levels):
        path.append(child.gather(1, path[-1]))
    return torch.cat(path, dim=1)


def accept() -> None:
    """Make our verifiers accept synthetically, in this process, from now on."""
    from vllm_specext.engine.verification.sampler import TargetOnlyVerifier, TreeVerifier

    _replace_probabilities()
    tree, chain = TreeVerifier.walk, TargetOnlyVerifier.walk

    def walk_tree(self: Any, drawn: Tensor, drafted: Tensor, starts: Tensor, slots: Tensor) -> Any:
        parents = self.trees.topology.parents[slots]
        told = draws(drawn, drafted, starts, parents, self.trees.shape.depth)
        return tree(self, told, drafted, starts, slots)

    def walk_chain(self: Any, drawn: Tensor, drafted: Tensor, starts: Tensor, slots: Tensor) -> Any:
        requests, levels = starts.shape[0] - 1, self.num_speculative_steps
        parents = torch.arange(-1, levels, device=drawn.device).clamp(min=0).expand(requests, -1)
        return chain(self, draws(drawn, drafted, starts, parents, levels), drafted, starts, slots)

    for verifier, walk in ((TreeVerifier, walk_tree), (TargetOnlyVerifier, walk_chain)):
        setattr(verifier, "walk", walk)  # noqa: B010 - mypy lets no method be assigned to


def complete_block_drafters() -> None:
    """Let vLLM's drafters of blocks, which join some of their weights when they read them, do so with dummy weights."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    stock = DummyModelLoader.load_weights

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        stock(self, model, model_config)
        if (join := getattr(getattr(model, "model", None), "_build_fused_kv_buffers", None)) is not None:
            join()

    setattr(DummyModelLoader, "load_weights", load_weights)  # noqa: B010


def _replace_probabilities() -> None:
    """In every module of ours that calls ``best_tokens``, before a graph is captured."""
    import vllm_specext.engine.drafting.tree_speculator  # noqa: F401
    from vllm_specext.kernels.best_tokens import best_tokens

    def known(logits: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        tokens, log_probs = best_tokens(logits, k, sharpness)
        place = torch.arange(k, dtype=torch.float32, device=tokens.device)
        likely = (GEOMETRIC * 0.4**place).log()
        return tokens, likely.expand_as(log_probs).contiguous()

    ours = (module for name, module in list(sys.modules.items()) if name.startswith("vllm_specext.engine"))
    callers = [module for module in ours if getattr(module, "best_tokens", None) is best_tokens]
    if not callers:
        raise RuntimeError("no module of vllm_specext.engine imports best_tokens, which dummy drafters need replaced")
    for module in callers:
        setattr(module, "best_tokens", known)  # noqa: B010
