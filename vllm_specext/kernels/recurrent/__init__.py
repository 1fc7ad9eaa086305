"""What layers with a recurrent state have in common: a short convolution before it, and verification from one state.

vLLM verifies a chain with a state for each of its rows, of which it keeps the accepted one. A state is megabytes, and a
tree has dozens of nodes. Here verification reads the one state before the root and writes none, and the states go on
along the accepted paths afterwards. `kernels.gated_delta` and `kernels.state_space` have the rules of the states.
"""

from vllm_specext.kernels.recurrent.layer import RecurrentLayer
from vllm_specext.kernels.recurrent.rows import BlockEnds, KeptRows, TreeRows, rows_before
from vllm_specext.kernels.recurrent.state_rule import StateRule

__all__ = ["BlockEnds", "KeptRows", "RecurrentLayer", "StateRule", "TreeRows", "rows_before"]
