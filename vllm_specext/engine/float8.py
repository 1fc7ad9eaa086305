"""What drafters with weights in float8 want of a launch."""

import torch
from vllm.config import ModelConfig
from vllm.platforms import current_platform

from vllm_specext.errors import ConfigurationError
from vllm_specext.options.base import MethodOptions

CAPABILITY = 89
"""Ten times the compute capability from which on NVIDIA's GPUs multiply float8."""


def check(options: MethodOptions, model: ModelConfig) -> None:
    """Refuse what vLLM would refuse later, in another process: float8 beside weights as the target ``model`` has them,
    or on the GPU at hand. Raises ``ConfigurationError``."""
    for key, value in options.in_float8.items():
        if model.dtype not in (torch.bfloat16, torch.float16):
            raise ConfigurationError(
                f"speculative-config key {key!r} is {value!r}, but the target's weights are in {name(model.dtype)}; "
                "allowed beside float8 are bfloat16 and float16 (--dtype)."
            )
        if key == "draft_lm_head_quantization" and model.head_dtype != model.dtype:
            raise ConfigurationError(
                f"speculative-config key {key!r} is {value!r}, but the target's output layer multiplies in "
                f"{name(model.head_dtype)} (head_dtype); allowed is {name(model.dtype)}, its weights' type."
            )
        if current_platform.is_cuda() and not current_platform.has_device_capability(CAPABILITY):
            raise ConfigurationError(
                f"speculative-config key {key!r} is {value!r}, but the GPU has no float8; it needs a compute "
                f"capability of {CAPABILITY / 10} or more."
            )


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def has_head_in_float8(options: MethodOptions) -> bool:
    """Whether the drafter's output layer is to be a copy in float8."""
    return "draft_lm_head_quantization" in options.in_float8
