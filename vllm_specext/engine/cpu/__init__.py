"""Model runner V2 on a CPU without Triton: torch and numpy bodies for the kernels that it launches.

vLLM's CPU wheel cannot compile Triton kernels: ``@triton.jit`` functions stay plain Python functions and the runner is
refused. ``allow_v2`` lifts the refusal (where the configuration is built), ``install`` supplies the bodies (in the
worker, before the runner is used), ``refuse_unsupported`` names what has no body. Each body is tested against its kernel.
"""

from vllm_specext.engine.cpu.install import allow_v2, install
from vllm_specext.engine.cpu.unsupported import refuse_unsupported

__all__ = ["allow_v2", "install", "refuse_unsupported"]
