"""Engines under test whose ranks Ray runs on this machine's cores."""

import json
import os
from pathlib import Path

from tests.engine.runner import replace_in_vllm

SPEC = "SPECEXT_TEST_RAY_SPEC"


def start(ranks: int, spec_path: str) -> None:
    """vLLM's CPU platform has no word for what Ray should count, so that every rank is declared to be a GPU."""
    import ray

    name_device()
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = {SPEC: str(Path(spec_path).resolve()), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    hook = "tests.engine.ray_workers.prepare"
    # By default Ray takes a third of the memory for its store.
    ray.init(
        num_cpus=ranks,
        num_gpus=ranks,
        object_store_memory=128 << 20,
        include_dashboard=False,
        runtime_env={"env_vars": environment, "worker_process_setup_hook": hook},
    )


def name_device() -> None:
    import vllm.v1.worker.cpu.shm  # noqa: F401  # has to come first on a CPU
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.ray_device_key = "GPU"


def prepare() -> None:
    name_device()
    replace_in_vllm(json.loads(Path(os.environ[SPEC]).read_text()))
