"""Which replacements are made in every process.

``install`` runs in every vLLM process. Each replacement asks first whether one of our methods is configured and
otherwise does what vLLM did, so that a server without them behaves as if the plug-in were not there. Eager models on a
CPU call the wheel's own kernels in any case, so that plain decoding has the arithmetic of verification, and greedy
batches draw by one argmax there.
"""

from typing import Any

from vllm_specext.engine.changes.guard import require_supported_vllm
from vllm_specext.engine.changes.wrapping import when_loaded, wrap
from vllm_specext.engine.hooks.argument_patches import wrap_arguments
from vllm_specext.engine.hooks.config_patches import wrap_config
from vllm_specext.engine.hooks.error_display import show_errors_in_one_line
from vllm_specext.engine.hooks.front_end_patches import wrap_sampling_params
from vllm_specext.engine.hooks.runner_parts import wrap_choice_of_speculator
from vllm_specext.errors import ConfigurationError


def install() -> None:
    """Apply the patches to this process; a second call changes nothing."""
    wrap_arguments()
    show_errors_in_one_line()
    try:
        require_supported_vllm()
    except ConfigurationError:
        return  # create_speculative_config says so to whoever asks for one of our methods
    wrap_config()
    wrap_sampling_params()
    wrap_choice_of_speculator()
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm_specext.cpu_runner.patches import wrap_platform

        wrap_platform(current_platform)
        # Only workers with model runner V2 load this module.
        when_loaded("vllm.v1.worker.gpu.sample.sampler", _wrap_sampler)


def _wrap_sampler(module: Any) -> None:
    from vllm_specext.cpu_runner.eager_layers import are_wanted

    if are_wanted():
        from vllm_specext.engine.verification.greedy import sample_greedily

        wrap(module.Sampler, "sample", sample_greedily)
