"""The expansion of draft trees in C++ on a CPU."""

import torch
from torch import Tensor

from vllm_specext.kernels.native.operators import LONG, SINGLE, WORD, Operator
from vllm_specext.tree.expansion import Expansion, Frontier
from vllm_specext.tree.topology import Topology, words

_POOL = {"tokens": LONG, "scores": SINGLE, "parents": LONG}
EXPAND = Operator(
    "expand",
    {
        "tokens": LONG,
        "log_probs": SINGLE,
        "scores_before": SINGLE,
        "candidates_before": LONG,
        "visible_before": WORD,
        **{f"out_pool_{name}": dtypes for name, dtypes in _POOL.items()},
        "out_nodes": LONG,
        "out_scores": SINGLE,
        "out_visible": WORD,
    },
    "int first, int own_bit, bool from_root",
)
BEST_TREE = Operator(
    "best_tree",
    {
        **{f"pool_{name}": dtypes for name, dtypes in _POOL.items()},
        "out_tokens": LONG,
        "out_parents": LONG,
        "out_depths": LONG,
        "out_ancestors": WORD,
        "out_expected": SINGLE,
    },
    "int size, int k, int levels",
)


def takes(tokens: Tensor, log_probs: Tensor) -> bool:
    return EXPAND.takes(tokens, log_probs)


class NativeExpansion(Expansion):
    """One call for each level and one for the tree."""

    def _plant(self, tokens: Tensor, log_probs: Tensor) -> Frontier:
        return self._level_of(tokens, log_probs, None)

    def _grow(self, tokens: Tensor, log_probs: Tensor, before: Frontier) -> Frontier:
        return self._level_of(tokens, log_probs, before)

    def _level_of(self, tokens: Tensor, log_probs: Tensor, before: Frontier | None) -> Frontier:
        requests, own, width = len(tokens), (self.grown - 1) * self.k, words(self._bits)
        nodes = tokens.new_empty(3, requests, self.k)
        scores = log_probs.new_empty(requests, self.k)
        visible = tokens.new_empty(requests, self.k, width, dtype=torch.int32)
        # The root has no scores, candidates and bits; its children do not read them.
        old = (scores, nodes[1], visible) if before is None else (before.scores, before.candidates, before.visible)
        EXPAND.overload(
            tokens, log_probs, *old, self.tokens, self.scores, self.parents, nodes, scores, visible,
            self._level(self.grown - 1).start, own if own < self._bits else 32 * width, before is None,
        )  # fmt: skip
        tokens, candidates, parents = nodes.unbind()
        return Frontier(tokens, scores, candidates, parents, visible)

    def _tree(self, nodes: int) -> tuple[Tensor, Topology, Tensor]:
        requests, nodes = len(self.tokens), min(nodes, self.size)
        tokens = self.tokens.new_empty(requests, nodes)
        parents, depths = self.tokens.new_empty(2, requests, nodes + 1).unbind()
        ancestors = self.tokens.new_empty(requests, nodes + 1, words(nodes + 1), dtype=torch.int32)
        expected = self.scores.new_empty(requests)
        made = tokens, parents, depths, ancestors, expected
        BEST_TREE.overload(self.tokens, self.scores, self.parents, *made, self.size, self.k, self.levels)
        return tokens, Topology(parents, depths, ancestors), expected
