"""The expansion of draft trees, a launch for each level and one for the tree where there is Triton, calls where there
is C++.

The specification is ``vllm_specext.tree.expansion``, which knows no kernels: as everywhere, kernels know trees and
trees do not know kernels, so what drafts begins its expansions here.
"""

from torch import Tensor

from vllm_specext.kernels.pointers import HAS_TRITON
from vllm_specext.kernels.tree_expansion import native
from vllm_specext.tree.budget import pool_size
from vllm_specext.tree.expansion import Expansion

LARGEST_POOL = 1024
"""Candidates are ranked by comparing each with each; a larger pool is better sorted."""


def expansion(tokens: Tensor, log_probs: Tensor, levels: int) -> Expansion:
    """Begin an ``Expansion(tokens, log_probs, levels)``, or one in Triton or C++ with the same trees, bit by bit."""
    if tokens.is_cuda and HAS_TRITON and pool_size(levels, tokens.shape[1]) <= LARGEST_POOL:
        # A CPU has no use for Triton, nor time to import it.
        from vllm_specext.kernels.tree_expansion.kernel import FusedExpansion

        return FusedExpansion(tokens, log_probs, levels)
    if native.takes(tokens, log_probs):
        return native.NativeExpansion(tokens, log_probs, levels)
    return Expansion(tokens, log_probs, levels)
