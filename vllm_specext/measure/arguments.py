"""The arguments of ``vllm serve`` and the environment that engines and servers are measured with."""

from collections.abc import Sequence

from vllm_specext.measure.bundled import TARGET

BUNDLED = (
    # In float32 two ways of computing the same logits do not disagree about the largest one.
    "--dtype=float32",
    "--max-model-len=1024",
    "--max-num-seqs=16",
    # Room for 16 requests of full length; by default vLLM takes most of the machine's memory.
    "--kv-cache-memory-bytes=536870912",
)
"""Arguments for the bundled target."""
MOST_REQUESTS = 16
"""Requests that an engine with these arguments runs at once."""
ON_CPU = ("--enforce-eager",)  # no C++ compiler needed, and the start takes half the time
ON_GPU = ("--gpu-memory-utilization=0.3",)  # what must be free at start; two servers share the GPU
SHARED_GPU = ("--gpu-memory-utilization=0.45",)
"""Arguments for a target of the user's on a GPU: two engines or servers are up at once."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def bundled_arguments() -> Sequence[str]:
    """The arguments for the bundled target on this machine."""
    return [*BUNDLED, *(ON_GPU if on_gpu() else ON_CPU)]


def compared_arguments(target: str | None, given: Sequence[str]) -> list[str]:
    """The arguments for an engine or a server that shares the machine with another one: those of the bundled target
    where ``target`` is ``None``, then ``given``, the user's. The prefix cache is off, so that a prompt costs the same
    in every round."""
    own = ["--no-enable-prefix-caching"]
    if target is None:
        own += bundled_arguments()
    elif on_gpu():
        own += SHARED_GPU
    return [*own, *given]


def served(target: str | None) -> str:
    """The model to load: ``target``, or the bundled one."""
    return target or str(TARGET)
