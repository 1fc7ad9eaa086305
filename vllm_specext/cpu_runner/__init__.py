"""Model runner V2 on a CPU without Triton: torch and numpy bodies for the kernels that it launches.

vLLM's CPU wheel cannot compile Triton kernels, so ``@triton.jit`` functions stay plain Python functions.
``refuse_unsupported`` names a setting that needs a kernel without a body, where the configuration is built; ``install``
supplies the bodies, in the worker and before the runner is used. Each body is tested against the Triton kernel that it
stands for.
"""

from vllm_specext.cpu_runner.install import install
from vllm_specext.cpu_runner.unsupported import refuse_unsupported

__all__ = ["install", "refuse_unsupported"]
