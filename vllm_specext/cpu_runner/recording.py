"""Whether passes of models are recorded and replayed on this machine, as CUDA graphs are on a GPU."""

from vllm.config import CompilationMode, VllmConfig
from vllm.platforms import current_platform

from vllm_specext.cpu_runner.eager_layers import are_wanted
from vllm_specext.kernels.native.library import library


def records_passes(vllm_config: VllmConfig) -> bool:
    """Whether passes are recorded: on a CPU, where one rank runs vLLM's modules uncompiled, and calls attention
    directly (``cpu_runner/eager_layers.py``)."""
    return (
        current_platform.is_cpu()
        and are_wanted()
        and vllm_config.compilation_config.mode == CompilationMode.NONE
        and vllm_config.parallel_config.world_size == 1
        and library() is not None
    )
