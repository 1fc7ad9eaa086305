"""The state space rule of Mamba-2 over draft trees.

Formulas: "Transformers are SSMs", arXiv 2405.21060; the mask of ancestors in the place of the triangle is ours.
"""

from vllm_specext.kernels.recurrent import StateRule
from vllm_specext.kernels.state_space.layer import StateSpaceLayer
from vllm_specext.kernels.state_space.naive import rule

__all__ = ["STATE_SPACE_RULE", "StateSpaceLayer"]

STATE_SPACE_RULE = StateRule(rule, __name__)
