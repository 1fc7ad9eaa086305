"""Where the rows of draft trees lie in a step of the target and where those of accepted paths go, a launch for each
where there is Triton, and a call where there is C++: in torch they are some twenty small ones.
"""

from torch import Tensor

from vllm_specext.kernels.pointers import HAS_TRITON
from vllm_specext.kernels.tree_layout import naive, native
from vllm_specext.tree.topology import Topology


def lay_out(
    slots: Tensor,
    starts: Tensor,
    seq_lens: Tensor,
    prefill_lens: Tensor,
    trees: Topology,
    causal: Tensor,
    positions: Tensor,
    last_position: int,
    prefix_lens: Tensor,
    visible: Tensor,
) -> Tensor:
    """Lay out the trees of ``V`` requests, whose nodes are the first ``T`` rows of a step: the rows' ``positions``
    become those of their depth, at most ``last_position``; the requests' ``prefix_lens`` and the nodes that are
    ``visible`` to each of theirs are filled in. Returns the positions that they had, those of chains, ``[T]``.

    ``slots`` ``[V]``: request slots, of which there are ``S``. ``starts`` ``[V + 1]``: first rows; a request has no
    more than its tree has nodes. ``seq_lens`` ``[V]``: with the rows. ``prefill_lens`` ``[S]``: a request with a
    shorter prefix has no draft, whatever its rows are, and gets a chain. ``trees``: of all slots, with the root,
    ``[S, N + 1]``. ``causal`` ``[N + 1, W]``: ancestors of a chain. Written in place: ``positions`` ``[T]`` int64,
    ``prefix_lens`` ``[V, or more]`` int32 and ``visible`` ``[V, or more, N + 1, W]``.
    """
    arguments = slots, starts, seq_lens, prefill_lens, trees, causal, positions, last_position, prefix_lens, visible
    if positions.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.tree_layout import kernel  # a CPU has no use for Triton, nor time to import it

        return kernel.lay_out(*arguments)
    if native.takes_step(*arguments):
        return native.lay_out(*arguments)
    return naive.lay_out(*arguments)


def accepted_rows(starts: Tensor, path: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the accepted paths, and where a chain would have them, ``[V, L]`` int64 both: of the ``path`` ``[V, L]``
    of nodes, root first, the first ``accepted`` ``[V]``, then the root's own row. ``starts`` ``[V]``: first rows."""
    if path.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.tree_layout import kernel

        return kernel.accepted_rows(starts, path, accepted)
    if native.takes_paths(starts, path, accepted):
        return native.accepted_rows(starts, path, accepted)
    return naive.accepted_rows(starts, path, accepted)
