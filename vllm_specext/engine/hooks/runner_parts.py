"""The parts of vLLM's model runner that are ours: the speculator, and the state that verifies its drafts."""

import sys
from collections.abc import Callable
from typing import Any

from vllm_specext.engine.changes.guard import require_known_signatures
from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap
from vllm_specext.engine.hooks.runner_patches import wrap_runner
from vllm_specext.registry import RUNNABLE, load


def wrap_choice_of_speculator() -> None:
    import vllm.v1.worker.gpu.spec_decode as spec_decode

    # A runner that the program loaded before the plug-in has the function under its own name.
    for owner in filter(None, (spec_decode, sys.modules.get("vllm.v1.worker.gpu.model_runner"))):
        wrap(owner, "init_speculator", _init_speculator)


@replaces(
    "vllm.v1.worker.gpu.spec_decode.init_speculator",
    name="speculator",
    why="the choice of the speculator is a closed if/elif",
    how=(
        "wrapped: our methods get their own DraftModelSpeculator; a runner that was loaded before the plug-in has the "
        "function under its own name, which is wrapped too"
    ),
    upstream="RFC vllm#36219 (proposer registry)",
    until="vLLM lets plug-ins register speculative methods",
    signature="vllm_config device req_states",
    also=("vllm.v1.worker.gpu.model_runner.init_speculator",),
)
def _init_speculator(original: Callable) -> Callable:
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.registrations import register_serving_models

        if not is_ours(vllm_config.speculative_config):
            return original(vllm_config, device, req_states)
        require_known_signatures()
        register_serving_models()
        wrap_runner()
        _wrap_choice_of_model_state()
        from vllm.triton_utils import HAS_TRITON

        if device.type == "cpu" and not HAS_TRITON:
            from vllm_specext import cpu_runner as cpu

            cpu.install()
        speculator = load(RUNNABLE[vllm_config.speculative_config.method].speculator)(vllm_config, device)
        speculator.req_states = req_states
        return speculator

    return init_speculator


def _wrap_choice_of_model_state() -> None:
    import vllm.v1.worker.gpu.model_states as model_states

    wrap(model_states, "resolve_model_state_cls", _resolve_model_state_cls)


@replaces(
    "vllm.v1.worker.gpu.model_states.resolve_model_state_cls",
    name="verification",
    why=(
        "vLLM's rejection sampler keeps the distribution of the output, and the target's own sampler the very tokens; "
        "vLLM's also leaves out logprob_token_ids"
    ),
    how=(
        "wrapped: for our methods a subclass of vLLM's choice overrides custom_sampler and notes what each request may "
        "be drafted; drawn drafts are verified by vLLM's rule, with the logprobs of listed tokens"
    ),
    upstream="custom_sampler is the supported hook, but only a model class can supply it",
    until="vLLM lets a speculator supply the verification",
    signature="vllm_config model",
)
def _resolve_model_state_cls(original: Callable) -> Callable:
    def resolve_model_state_cls(vllm_config: Any, model: Any) -> Any:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.verification.known_layers import refuse_own_state
        from vllm_specext.engine.verification.model_state import with_our_verification

        base = original(vllm_config, model)
        config = vllm_config.speculative_config
        if not is_ours(config):
            return base
        refuse_own_state(config.options.method, model)
        return with_our_verification(base, config)

    return resolve_model_state_cls
