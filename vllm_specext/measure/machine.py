"""The machine that figures were measured on, in words."""

import os
import platform


def machine() -> str:
    """The system, the architecture and the number of cores that may be used."""
    from vllm_specext.vllm_process import cpu_quota

    visible = len(os.sched_getaffinity(0))
    return f"{platform.system()} {platform.machine()}, {min(visible, cpu_quota() or visible)} cores"


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
