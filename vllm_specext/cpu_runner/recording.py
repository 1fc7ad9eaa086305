"""Whether passes of models are recorded and replayed on this machine, as CUDA graphs are on a GPU."""

from vllm.config import CompilationMode, VllmConfig
from vllm.platforms import current_platform

from vllm_specext.cpu_runner.eager_layers import are_wanted
from vllm_specext.kernels.native.library import library


def records_passes(vllm_config: VllmConfig) -> bool:
    """Whether passes are recorded: on a CPU, where one rank runs vLLM's modules uncompiled, and calls attention
    directly (``cpu_runner/eager_layers.py``). Not where a model has latent attention: what it writes depends on which
    rows are padding, which vLLM's layer asks in Python; nor beside a KV connector, which attention calls in Python for
    every layer."""
    return (
        current_platform.is_cpu()
        and are_wanted()
        and vllm_config.compilation_config.mode == CompilationMode.NONE
        and vllm_config.parallel_config.world_size == 1
        and not vllm_config.model_config.use_mla
        and vllm_config.kv_transfer_config is None
        and library() is not None
    )
