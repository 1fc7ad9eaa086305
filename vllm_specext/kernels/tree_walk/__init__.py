"""The verification walks, each in one launch where there is Triton and one call where there is C++: in torch they are a
dozen small ones.

Their specification is ``vllm_specext.tree.walk``, which knows no kernels: as everywhere, kernels know trees and trees
do not know kernels, so what runs them imports the walks from here.
"""

from torch import Tensor

from vllm_specext.kernels.pointers import HAS_TRITON
from vllm_specext.kernels.tree_walk import native
from vllm_specext.tree import walk


def accept_chain(drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Walk each request's chain, as ``tree.walk.accept_chain`` says."""
    if drawn.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.tree_walk import kernel  # a CPU has no use for Triton, nor time to import it

        return kernel.accept_chain(drawn, drafted, cu_num_logits, width)
    if native.takes_chains(drawn, drafted, cu_num_logits):
        return native.accept_chain(drawn, drafted, cu_num_logits, width)
    return walk.accept_chain(drawn, drafted, cu_num_logits, width)


def accept_tree(
    drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, parents: Tensor, levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk each request's tree, as ``tree.walk.accept_tree`` says."""
    if drawn.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.tree_walk import kernel

        return kernel.accept_tree(drawn, drafted, cu_num_logits, parents, levels)
    if native.takes_trees(drawn, drafted, cu_num_logits, parents):
        return native.accept_tree(drawn, drafted, cu_num_logits, parents, levels)
    return walk.accept_tree(drawn, drafted, cu_num_logits, parents, levels)
