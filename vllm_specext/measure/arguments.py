"""The arguments of ``vllm serve`` and the environment that engines and servers are measured with."""

from collections.abc import Sequence

from vllm_specext.measure.bundled import TARGET

BUNDLED = (
    # In float32 two ways of computing the same logits do not disagree about the largest one.
    "--dtype=float32",
    "--max-model-len=1024",
)
"""Arguments for the bundled target."""
MOST_REQUESTS = 16
"""Requests that an engine of the bundled target runs at once, where no more are asked for."""
CACHE = 512 << 20
"""Bytes of keys and values: room for ``MOST_REQUESTS`` of full length. By default vLLM takes most of the machine's
memory."""
CACHE_OF_A_FURTHER_REQUEST = 8 << 20
"""Bytes for a request beyond these: room for 256 tokens."""
ON_CPU = ("--enforce-eager",)  # no C++ compiler needed, and the start takes half the time
ON_GPU = ("--gpu-memory-utilization=0.3",)  # what must be free at start; two servers share the GPU
SHARED_GPU = ("--gpu-memory-utilization=0.45",)
"""Arguments for a target of the user's on a GPU: two engines or servers are up at once."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def cache_bytes(at_once: int) -> int:
    """Bytes of keys and values of the bundled target, for ``at_once`` requests."""
    return CACHE + CACHE_OF_A_FURTHER_REQUEST * max(0, at_once - MOST_REQUESTS)


def bundled_arguments(at_once: int = MOST_REQUESTS) -> Sequence[str]:
    """The arguments for the bundled target on this machine, which then runs ``at_once`` requests."""
    load = (f"--max-num-seqs={max(at_once, MOST_REQUESTS)}", f"--kv-cache-memory-bytes={cache_bytes(at_once)}")
    return [*BUNDLED, *load, *(ON_GPU if on_gpu() else ON_CPU)]


def compared_arguments(target: str | None, given: Sequence[str], at_once: int = MOST_REQUESTS) -> list[str]:
    """The arguments for an engine or a server that shares the machine with another one: those of the bundled target
    with room for ``at_once`` requests where ``target`` is ``None``, then ``given``, the user's. The prefix cache is
    off, so that a prompt costs the same in every round."""
    own = ["--no-enable-prefix-caching"]
    if target is None:
        own += bundled_arguments(at_once)
    elif on_gpu():
        own += SHARED_GPU
    return [*own, *given]


def served(target: str | None) -> str:
    """The model to load: ``target``, or the bundled one."""
    return target or str(TARGET)
