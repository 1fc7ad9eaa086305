"""vLLM's warm-up of its kernels, on a GPU and from vLLM 0.33 on also on a CPU, for targets whose drafts have room for
few rows."""

from collections.abc import Callable
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap


def wrap_warm_up() -> None:
    from vllm.v1.worker import gpu_worker
    from vllm.v1.worker.gpu import warmup

    for module in (warmup, gpu_worker):
        wrap(module, "warmup_kernels", _warmup_kernels)


@replaces(
    "vllm.v1.worker.gpu.warmup.warmup_kernels",
    name="requests of the warm-up",
    why=(
        "vLLM warms up with the most drafted tokens for as many requests as there is room for, which no schedule of a "
        "method has; what recurrent layers keep of drafts has room for a schedule's alone"
    ),
    how="wrapped: for targets with such layers it takes fewer requests",
    upstream="none known",
    until="vLLM's warm-up follows the schedule of drafted tokens",
    signature="model_runner worker_execute_model worker_sample_tokens",
    also=("vllm.v1.worker.gpu_worker.warmup_kernels",),
)
@replaces(
    "vllm.config.scheduler.SchedulerConfig.max_num_seqs",
    name="number of requests while vLLM warms up",
    why="the warm-up takes it for the number of requests that there is room for",
    how="set while vLLM warms up, for targets with recurrent layers",
    upstream="none known",
    until="vLLM's warm-up follows the schedule of drafted tokens",
    kind="set",
)
def _warmup_kernels(original: Callable) -> Callable:
    def warmup_kernels(model_runner: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.recurrent.layers import most_rows, recurrent_layers

        config = model_runner.vllm_config
        if not is_ours(config.speculative_config) or recurrent_layers(config) is None:
            original(model_runner, *args, **kwargs)
            return
        scheduler = model_runner.scheduler_config
        served = scheduler.max_num_seqs
        scheduler.max_num_seqs = min(served, max(1, most_rows(config) // model_runner.decode_query_len))
        try:
            original(model_runner, *args, **kwargs)
        finally:
            scheduler.max_num_seqs = served

    return warmup_kernels
