"""Memory that outlasts vLLM's sleep mode, and memory that it may give back.

vLLM loads models, and makes much else beside them, in memory that a sleep of level 2 gives back: it counts on their
weights being loaded anew afterwards, which it does for the target alone. What nobody loads again has to lie elsewhere:
the drafter, and everything that verification keeps beside the target.
"""

from contextlib import AbstractContextManager, nullcontext

from vllm.config import VllmConfig
from vllm.device_allocator import get_mem_allocator_instance
from vllm.platforms import current_platform

KEPT = "runtime"
"""vLLM's name for memory that is copied to the host for any sleep, and comes back with any waking."""
GIVEN_BACK = "kv_cache"
"""vLLM's name for memory that any sleep gives back, and that comes back with anything in it."""


def kept_memory(vllm_config: VllmConfig) -> AbstractContextManager:
    """What is allocated in this context is there again after a sleep of any level, at its address. ``vllm_config`` is
    the target's."""
    return _memory(KEPT, vllm_config)


def cache_memory(vllm_config: VllmConfig) -> AbstractContextManager:
    """What is allocated in this context has lost its content after a sleep. No request outlives one without being read
    from its beginning."""
    return _memory(GIVEN_BACK, vllm_config)


def _memory(tag: str, vllm_config: VllmConfig) -> AbstractContextManager:
    if not current_platform.is_cuda_alike() or not vllm_config.model_config.enable_cumem_allocator:
        return nullcontext()
    return get_mem_allocator_instance().use_memory_pool(tag=tag)
