"""The tokens that draft trees grow from: each row's most likely ones, in two launches where there is Triton and one
call where there is C++. In torch it is six operations, three of which go over the whole vocabulary.

The specification is ``vllm_specext.tree.expansion.best_tokens``, which knows no kernels: as everywhere, kernels know
trees and trees do not know kernels, so what drafts has its tokens from here.
"""

from torch import Tensor

from vllm_specext.kernels.best_tokens import native
from vllm_specext.kernels.pointers import HAS_TRITON
from vllm_specext.tree import expansion


def best_tokens(logits: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
    """The ``k`` most likely tokens ``[..., k]`` int64 and their log-probabilities, as ``tree.expansion.best_tokens``
    has them; ``logits`` ``[..., V]``, ``sharpness`` ``[...]`` float32. In Triton and in C++ the lower of two equally
    likely tokens comes first."""
    if logits.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.best_tokens import kernel  # a CPU has no use for Triton, nor time to import it

        if kernel.takes(logits, k):
            return kernel.best_tokens(logits, k, sharpness)
    if native.takes(logits, k):
        return native.best_tokens(logits, k, sharpness)
    return expansion.best_tokens(logits, k, sharpness)


def best_token(logits: Tensor) -> Tensor:
    """The most likely token of each row of ``logits`` ``[..., V]``, of equal ones the first: ``[...]`` int64. On a GPU
    torch looks at a row with one block of threads: 26 µs for 1 to 64 rows of 128,256 on an H200, where the kernels take
    3 to 8 in a graph. Outside of one, two launches take the host longer than torch's."""
    if logits.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.best_tokens import kernel  # a CPU has no use for Triton, nor time to import it

        if kernel.takes(logits, 1):
            return kernel.best_token(logits)
    return logits.argmax(dim=-1)
