import importlib
import sys

import pytest
import vllm.v1.worker.gpu.model_runner
import vllm.v1.worker.gpu.spec_decode.dflash.speculator
import vllm.v1.worker.gpu.spec_decode.eagle.speculator
import vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator  # noqa: F401
from triton.runtime.interpreter import InterpretedFunction

from vllm_specext.cpu_runner.install import kernel_bodies
from vllm_specext.cpu_runner.unsupported import KERNELS_WITHOUT_BODY, raising_body

# Launched only by the methods and the function of `install.replacements`.
BEHIND_REPLACEMENTS = {
    "block_table._compute_slot_mappings_kernel",
    "block_table._gather_block_tables_kernel",
    "model_states.prompt_embeds._apply_prompt_embeds_kernel",
    "spec_decode.rejection_sampler_utils._compute_cumulative_log_p_kernel",
    "spec_decode.rejection_sampler_utils._compute_local_logits_stats_kernel",
    "spec_decode.rejection_sampler_utils._compute_local_residual_mass_kernel",
    "spec_decode.rejection_sampler_utils._insert_resampled_kernel",
    "spec_decode.rejection_sampler_utils._rejection_kernel",
    "spec_decode.rejection_sampler_utils._resample_kernel",
}
# The plan comes first and refuses for all of them.
BEHIND_A_REFUSAL = {
    "sample.batch_shard._pack_logprobs_kernel",
    "sample.batch_shard._pack_sampler_output_kernel",
    "sample.batch_shard._unpack_gathered_output_kernel",
    "sample.batch_shard._unpack_logprobs_kernel",
}
NEWER = {"sample.watermark._draft_step_kernel"}
"""Of vLLM 0.33, and refused with what they are for."""


def test_every_kernel_of_the_runner_has_a_body_or_a_refusal() -> None:
    prefix = "vllm.v1.worker.gpu."
    kernels = {
        f"{module_name}.{name}"
        for module_name, module in list(sys.modules.items())
        if module_name.startswith(prefix)
        for name, value in vars(module).items()
        if isinstance(value, InterpretedFunction) and name.endswith("_kernel") and value.fn.__module__ == module_name
    }
    unreached = {prefix + name for name in BEHIND_REPLACEMENTS | BEHIND_A_REFUSAL}
    newer = {prefix + name for name in NEWER}
    assert kernels - kernel_bodies().keys() - KERNELS_WITHOUT_BODY.keys() - newer == unreached


def test_every_name_is_a_kernel_of_this_vllm() -> None:
    for name in [*kernel_bodies(), *KERNELS_WITHOUT_BODY]:
        module, attribute = name.rsplit(".", 1)
        assert isinstance(getattr(importlib.import_module(module), attribute), InterpretedFunction), name


def test_a_kernel_without_body_refuses_in_a_sentence() -> None:
    with pytest.raises(
        NotImplementedError, match=r"^model runner V2 on CPU without Triton does not support watermarks$"
    ):
        raising_body("watermarks")(1, 2, BLOCK_SIZE=3)
