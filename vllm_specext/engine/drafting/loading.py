"""What vLLM's loaders of drafters are given."""

from copy import copy

from vllm.config import VllmConfig


def for_loading(vllm_config: VllmConfig) -> VllmConfig:
    """``vllm_config`` for a loader that makes another configuration of it. A new one settles its sizes of CUDA graphs
    anew, in an object that it would otherwise share with the target's; the layers that are registered in it stay
    shared."""
    own = copy(vllm_config)
    own.compilation_config = copy(vllm_config.compilation_config)
    return own
