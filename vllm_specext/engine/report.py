"""What vLLM picks on this machine, for ``vllm-specext doctor``."""

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms import current_platform
from vllm.v1.attention.selector import get_attn_backend


def facts() -> dict[str, str]:
    """Platform, devices, model runner, and the attention backend for a Llama of 128-wide heads in bfloat16."""
    rows = {"platform": current_platform.device_name or "none"}
    if torch.cuda.is_available():
        rows["devices"] = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    config = VllmConfig()
    rows["model runner without our methods"] = "V2" if config.use_v2_model_runner else "V1"
    rows["model runner with our methods"] = "V2"
    with set_current_vllm_config(config):
        backend = get_attn_backend(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="auto")
    rows["attention backend"] = str(backend.get_name())
    return rows
