"""Learning how far drafters can be trusted, in one launch where there is Triton and one call where there is C++: in
torch it is a dozen small ones.

The specification is ``vllm_specext.tree.calibration``, which knows no kernels: as everywhere, kernels know trees and
trees do not know kernels, so what drafts learns from here.
"""

from torch import Tensor

from vllm_specext.kernels.calibration import native
from vllm_specext.kernels.pointers import HAS_TRITON
from vllm_specext.tree import calibration
from vllm_specext.tree.calibration import Learned


def calibrate(
    learned: Learned,
    slots: Tensor,
    temperatures: Tensor,
    expected: Tensor,
    num_sampled: Tensor,
    verified: int,
    counts: Tensor | None = None,
) -> Tensor:
    """Learn from a step, as ``tree.calibration.calibrate`` says."""
    given = slots, temperatures, expected, num_sampled
    if slots.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.calibration import kernel  # a CPU has no use for Triton, nor time to import it

        return kernel.calibrate(learned, *given, verified, counts)
    if native.takes(*given):
        return native.calibrate(learned, *given, verified, counts)
    return calibration.calibrate(learned, *given, verified, counts)
