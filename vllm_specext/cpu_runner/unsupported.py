"""What model runner V2 cannot do on a CPU without Triton, and how it says so.

``refuse_unsupported`` names the setting before anything is loaded. Should a launch come through nevertheless, the
kernel's stand-in raises the same sentence instead of "'function' object is not subscriptable".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from vllm_specext.architectures import is_other_hybrid
from vllm_specext.errors import ConfigurationError

_GPU = "vllm.v1.worker.gpu"

# Kernels of modules that the runner imports anyway, with the feature that launches them.
KERNELS_WITHOUT_BODY: dict[str, str] = {
    f"{_GPU}.cp_utils._dcp_local_seq_lens_kernel": "decode context parallelism",
    f"{_GPU}.sample.batch_shard._build_shard_plan_kernel": "batch-sharded sampling",
    f"{_GPU}.sample.output._compact_sampling_mask_kernel": "returning the sampling mask",
    f"{_GPU}.sample.trace_replay._trace_replay_kernel": "trace replay",
    f"{_GPU}.sample.watermark._philox_gumbel_kernel": "watermarking",
    f"{_GPU}.sample.watermark._repeated_context_mask_kernel": "watermarking",
    f"{_GPU}.spec_decode.acceptance_estimator._accumulate_kernel": "adaptive verification",
    f"{_GPU}.spec_decode.acceptance_estimator._local_max_sumexp_kernel": "adaptive verification",
    f"{_GPU}.spec_decode.acceptance_estimator._predict_kernel": "adaptive verification",
    f"{_GPU}.spec_decode.acceptance_estimator._refit_kernel": "adaptive verification",
}

# vLLM's own speculators whose kernels have no body here.
_METHODS_WITHOUT_BODIES = ("ngram", "ngram_gpu")


PLAIN_PAGES = ("vec", "vec16")
"""vLLM's names for the CPU kernels whose pages draft trees can read and write; the others pack them for their own
instructions."""


PAGE = 128
"""Tokens of a page that nobody has asked for on a CPU; vLLM 0.33 decides so after its configuration is checked."""


def raising_body(feature: str) -> Callable[..., NoReturn]:
    """Return a kernel body that refuses `feature`."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"model runner V2 on CPU without Triton does not support {feature}")

    return refuse


def refuse_unsupported(vllm_config: Any) -> None:
    """Raise a ``ConfigurationError`` naming the first setting of a ``VllmConfig`` whose kernels have no CPU body."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    speculative = vllm_config.speculative_config
    settings = {
        "watermark_config": (getattr(vllm_config, "watermark_config", None), None),
        "enable_trace_replay": (model.enable_trace_replay, False),
        "return_sampling_mask": (model.return_sampling_mask, False),
        "prefill_context_parallel_size": (parallel.prefill_context_parallel_size, 1),
        "decode_context_parallel_size": (parallel.decode_context_parallel_size, 1),
        "enable_batch_sharded_sampling": (bool(parallel.enable_batch_sharded_sampling), False),
        "model (hybrid with other layers than gated delta rules and Mamba-2)": (
            is_other_hybrid(model),
            False,
        ),
        "mamba_cache_mode == 'all'": (vllm_config.cache_config.mamba_cache_mode == "all", False),
        "enable_adaptive_verification": (bool(speculative and speculative.enable_adaptive_verification), False),
    }
    for name, (value, allowed) in settings.items():
        if value != allowed:
            raise ConfigurationError(
                f"model runner V2 on CPU without Triton: {name} is {value!r}, only {allowed!r} is allowed."
            )
    if getattr(speculative, "rejection_sample_method", None) == "fly":
        raise ConfigurationError(
            "model runner V2 on CPU without Triton: rejection_sample_method is 'fly', only 'standard', 'block' and "
            "'synthetic' are allowed."
        )
    if speculative is not None and speculative.method in _METHODS_WITHOUT_BODIES:
        raise ConfigurationError(
            f"model runner V2 on CPU without Triton: speculative method is {speculative.method!r}, "
            f"which is none of those with CPU kernel bodies (all but {', '.join(_METHODS_WITHOUT_BODIES)})."
        )
    if getattr(speculative, "tree", None) is not None:
        _refuse_packed_pages(vllm_config)


def _refuse_packed_pages(vllm_config: Any) -> None:
    """Refuse draft trees where vLLM's attention kernel packs the pages of the target or of the drafter."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    cache, target = vllm_config.cache_config, vllm_config.model_config
    page = cache.block_size if cache.user_specified_block_size else PAGE
    head_sizes = {model.get_head_size() for model in (target, vllm_config.speculative_config.draft_model_config)}

    def packed_for(dtype: torch.dtype) -> list[str]:
        kernels = [_get_attn_isa(dtype, page, size, cache.cache_dtype) for size in sorted(head_sizes)]
        return [kernel for kernel in kernels if kernel not in PLAIN_PAGES]

    if packed := packed_for(target.dtype):
        others = [dtype for dtype in (torch.float32, torch.float16) if not packed_for(dtype)]
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in others)
        raise ConfigurationError(
            f"draft trees on this CPU cannot have --dtype {str(target.dtype).removeprefix('torch.')}, whose pages vLLM "
            f"packs for {packed[0]}; {f'--dtype {allowed} works, and ' if allowed else ''}tree_top_k 1 drafts chains."
        )
