"""The gated delta rule over draft trees.

Formulas: "Gated Delta Networks", arXiv 2412.06464; the mask of ancestors in the place of the triangle is ours.
"""

from vllm_specext.kernels.gated_delta.layer import GatedDeltaLayer
from vllm_specext.kernels.gated_delta.naive import rule
from vllm_specext.kernels.recurrent import StateRule

__all__ = ["GATED_DELTA_RULE", "GatedDeltaLayer"]

GATED_DELTA_RULE = StateRule(rule, __name__)
