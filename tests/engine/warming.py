"""vLLM's warm-up of its kernels, which vLLM's GPU workers run before serving; its CPU workers do so from 0.33 on, where
models are compiled."""

from typing import Any


def warm_up(llm: Any) -> None:
    """Serve the warm-up's made-up requests: as many as there is room for, with the most drafted tokens."""
    from vllm.v1.worker import gpu_worker

    worker = llm.llm_engine.model_executor.driver_worker.worker
    gpu_worker.warmup_kernels(worker.model_runner, worker.execute_model, worker.sample_tokens)
