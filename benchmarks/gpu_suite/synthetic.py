"""Acceptance without a trained drafter: the walk is told what the target drew.

vLLM has such a mode for its own rejection sampler (``rejection_sample_method: synthetic``). For our verification this
module does the same from outside: before a walk, the target's draws on one path of the tree are replaced by the tokens
drafted there, as deep as chance wants it. What the drafter thinks of its tokens is replaced too, because a drafter with
random weights finds all tokens equally unlikely, and grows trees of two levels.
The draws cost five small launches per step, which are part of the step that is measured.
"""

import sys
from typing import Any

import torch
from torch import Tensor

GEOMETRIC = 0.6
"""The drafter's probability of its best token; each next one has 0.4 of that of the one before."""


def unconditional(rate: float, depth: int) -> list[float]:
    """Chance that at least so many drafted tokens are accepted, when each is with ``rate``."""
    return [rate ** (level + 1) for level in range(depth)]


def tokens_per_step(rates: list[float]) -> float:
    return 1 + sum(rates)


class Acceptance:
    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._nodes: list[int] = []
        self._paths: dict[int, Tensor] = {}
        """The first children down from the root on the device, by the number of rows that a tree has."""

    def draws(self, drawn: Tensor, drafted: Tensor, starts: Tensor, parents: Tensor, levels: int) -> Tensor:
        """``drawn`` ``[rows]`` changed so that a walk down ``parents`` ``[R, N + 1]`` accepts as many as chance wants,
        ``levels`` at most. Chains have the parents of a chain."""
        if drawn.shape[0] == parents.shape[0]:
            return drawn  # nothing was drafted
        if not self._nodes:
            # All trees are alike, because the drafter is made to think the same of all. Waits for the device, once.
            nodes = first_children(parents[0].tolist())
            if len(nodes) > levels + 1:
                return drawn  # no tree has been drafted yet
            self._nodes = nodes
        width = parents.shape[1]
        if width not in self._paths:
            self._paths[width] = torch.tensor([node for node in self._nodes if node < width], device=drawn.device)
        path = self._paths[width]
        accepted = (torch.rand(parents.shape[0], len(path) - 1, device=drawn.device) < self.rate).cumprod(dim=1).bool()
        rows = (starts[:-1, None] + path).clamp(max=drawn.shape[0] - 1)
        changed = torch.where(accepted, drafted[rows[:, 1:]], drawn[rows[:, :-1]])
        return drawn.scatter(0, rows[:, :-1].flatten(), changed.flatten().to(drawn.dtype))


def first_children(parents: list[int]) -> list[int]:
    """The path from the root on which every node is its parent's first child."""
    path = [0]
    while (child := next((node for node in range(1, len(parents)) if parents[node] == path[-1]), None)) is not None:
        path.append(child)
    return path


def accept(rate: float) -> None:
    """Make our verifiers accept synthetically, in this process, from now on."""
    from vllm_specext.engine.verification.sampler import TargetOnlyVerifier, TreeVerifier

    _replace_probabilities()
    acceptance = Acceptance(rate)
    tree, chain = TreeVerifier.walk, TargetOnlyVerifier.walk

    def walk_tree(self: Any, drawn: Tensor, drafted: Tensor, starts: Tensor, slots: Tensor) -> Any:
        parents = self.trees.topology.parents[slots]
        told = acceptance.draws(drawn, drafted, starts, parents, self.trees.shape.depth)
        return tree(self, told, drafted, starts, slots)

    def walk_chain(self: Any, drawn: Tensor, drafted: Tensor, starts: Tensor, slots: Tensor) -> Any:
        requests, levels = starts.shape[0] - 1, self.num_speculative_steps
        parents = torch.arange(-1, levels, device=drawn.device).clamp(min=0).expand(requests, -1)
        return chain(self, acceptance.draws(drawn, drafted, starts, parents, levels), drafted, starts, slots)

    for verifier, walk in ((TreeVerifier, walk_tree), (TargetOnlyVerifier, walk_chain)):
        setattr(verifier, "walk", walk)  # noqa: B010 - mypy lets no method be assigned to


def _replace_probabilities() -> None:
    """In every module of ours that calls ``best_tokens``, before a graph is captured."""
    import vllm_specext.engine.drafting.tree_speculator  # noqa: F401
    from vllm_specext.kernels.tree_expansion import best_tokens

    def known(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        tokens, log_probs = best_tokens(logits, k)
        place = torch.arange(k, dtype=torch.float32, device=tokens.device)
        likely = (GEOMETRIC * 0.4**place).log()
        return tokens, likely.expand_as(log_probs).contiguous()

    ours = (module for name, module in list(sys.modules.items()) if name.startswith("vllm_specext.engine"))
    callers = [module for module in ours if getattr(module, "best_tokens", None) is best_tokens]
    if not callers:
        raise RuntimeError("no module of vllm_specext.engine imports best_tokens, which dummy drafters need replaced")
    for module in callers:
        setattr(module, "best_tokens", known)  # noqa: B010
