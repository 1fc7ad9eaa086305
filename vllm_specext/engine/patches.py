"""The replacements in vLLM that ``catalogue.py`` lists.

``install`` runs in every vLLM process. Each replacement asks first whether one of our methods is configured and
otherwise does what vLLM did, so that a server without them behaves as if the plug-in were not there.
"""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, get_args

from pydantic import ValidationError

from vllm_specext.engine.configured import wrap_front_end, wrap_worker
from vllm_specext.engine.guard import require_known_signatures, require_supported_vllm
from vllm_specext.engine.served_drafter import override_with_drafter
from vllm_specext.engine.wrapping import when_loaded, wrap, wrap_property
from vllm_specext.errors import ConfigurationError
from vllm_specext.registry import METHODS, load
from vllm_specext.speculative_config import keys, with_flags


def install() -> None:
    """Apply the patches to this process; a second call changes nothing."""
    # Only processes that parse arguments load it.
    when_loaded("vllm.engine.arg_utils", _wrap_arguments)
    wrap(sys, "excepthook", _excepthook)
    try:
        require_supported_vllm()
    except ConfigurationError:
        return  # create_speculative_config says so to whoever asks for one of our methods
    import vllm.config.vllm as config_module
    import vllm.v1.worker.gpu.spec_decode as spec_decode
    from vllm.config import SchedulerConfig, VllmConfig
    from vllm.platforms import current_platform
    from vllm.sampling_params import SamplingParams

    wrap_property(VllmConfig, "use_v2_model_runner", _use_v2_model_runner)
    wrap_property(VllmConfig, "num_lookahead_tokens", _num_lookahead_tokens)
    wrap(VllmConfig, "_maybe_disable_dynamic_sd_for_data_parallel", _keep_schedule_of_independent_ranks)
    wrap(SchedulerConfig, "get_scheduler_cls", _get_scheduler_cls)
    wrap(SamplingParams, "_validate_spec_decode", _validate_spec_decode)
    wrap(VllmConfig, "_validate_v2_model_runner", _validate_v2_model_runner)
    if not set(METHODS) <= set(get_args(config_module.EagleModelTypes)):
        config_module.EagleModelTypes = Literal[(config_module.EagleModelTypes, *METHODS)]
    # A program may have loaded the runner before the plug-in, which then has the function under a name of its own.
    for owner in filter(None, (spec_decode, sys.modules.get("vllm.v1.worker.gpu.model_runner"))):
        wrap(owner, "init_speculator", _init_speculator)
    if current_platform.is_cpu():
        wrap(type(current_platform), "register_triton_kernel_overrides", _register_triton_kernel_overrides)


def _wrap_arguments(module: Any) -> None:
    wrap(module, "maybe_override_with_speculators", override_with_drafter)
    wrap(module.EngineArgs, "create_speculative_config", _create_speculative_config)


def _create_speculative_config(original: Callable) -> Callable:
    def create_speculative_config(self: Any, target_model_config: Any, target_parallel_config: Any) -> Any:
        raw = {} if self.speculative_config is None else keys(self.speculative_config)
        method = raw.get("method", self.spec_method)
        if method in METHODS or self.spec_method in METHODS:
            from vllm_specext.engine.config import create

            config = create(self, with_flags(raw, self), target_model_config, target_parallel_config)
            wrap_front_end()
            return config
        if method is not None:
            from vllm.config.speculative import SpeculativeMethod

            known = _flatten(SpeculativeMethod)
            if method not in known:
                allowed = ", ".join([*METHODS, *known])
                raise ConfigurationError(f"speculative-config key 'method' is {method!r}, but allowed are {allowed}.")
        return original(self, target_model_config, target_parallel_config)

    return create_speculative_config


def _flatten(literal: Any) -> list[str]:
    return [str(value) for value in get_args(literal)]


def _use_v2_model_runner(original: Callable) -> Callable:
    def use_v2_model_runner(self: Any) -> bool:
        from vllm_specext.engine.config import is_ours

        return is_ours(self.speculative_config) or original(self)

    return use_v2_model_runner


def _num_lookahead_tokens(original: Callable) -> Callable:
    def num_lookahead_tokens(self: Any) -> int:
        from vllm_specext.engine.config import is_ours

        slots = self.speculative_config.options.lookahead if is_ours(self.speculative_config) else None
        return original(self) if slots is None else slots

    return num_lookahead_tokens


def _keep_schedule_of_independent_ranks(original: Callable) -> Callable:
    def _maybe_disable_dynamic_sd_for_data_parallel(self: Any) -> None:
        from vllm_specext.engine.config import is_ours

        if not is_ours(self.speculative_config) or self.model_config.is_moe:
            original(self)

    return _maybe_disable_dynamic_sd_for_data_parallel


def _get_scheduler_cls(original: Callable) -> Callable:
    def get_scheduler_cls(self: Any) -> Any:
        from vllm_specext.engine.scheduling import with_draft_limits

        return with_draft_limits(original(self))

    return get_scheduler_cls


def _validate_spec_decode(original: Callable) -> Callable:
    def _validate(self: Any, speculative_config: Any) -> None:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.requests import validate

        if is_ours(speculative_config):
            validate(self)
            if not speculative_config.options.samples_drafts:
                return
        original(self, speculative_config)

    return _validate


def _validate_v2_model_runner(original: Callable) -> Callable:
    def _validate(self: Any) -> None:
        from vllm.platforms import current_platform
        from vllm.triton_utils import HAS_TRITON

        if HAS_TRITON or not current_platform.is_cpu():
            return original(self)
        if unsupported := self._get_v2_model_runner_unsupported_features():
            raise ValueError(f"Model Runner V2 does not yet support: {', '.join(unsupported)}")
        from vllm_specext.engine.cpu import refuse_unsupported

        refuse_unsupported(self)
        return None

    return _validate


def _init_speculator(original: Callable) -> Callable:
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        from vllm_specext.engine.config import is_ours, register_serving_models

        if not is_ours(vllm_config.speculative_config):
            return original(vllm_config, device, req_states)
        require_known_signatures()
        register_serving_models()
        wrap_worker()
        from vllm.triton_utils import HAS_TRITON

        if device.type == "cpu" and not HAS_TRITON:
            from vllm_specext.engine import cpu

            cpu.install()
        speculator = load(METHODS[vllm_config.speculative_config.method].speculator)(vllm_config, device)
        speculator.req_states = req_states
        return speculator

    return init_speculator


def _register_triton_kernel_overrides(original: Callable) -> Callable:
    def register_triton_kernel_overrides(cls: Any = None) -> None:
        import vllm.envs as envs
        from vllm.triton_utils import HAS_TRITON

        original()
        if envs.VLLM_USE_V2_MODEL_RUNNER and not HAS_TRITON:
            from vllm_specext.engine import cpu

            cpu.install()

    return register_triton_kernel_overrides


def _excepthook(original: Callable) -> Callable:
    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        ours = _inside_validation(error) or error
        if isinstance(ours, ConfigurationError):
            print(f"error: {ours}", file=sys.stderr)
        else:
            original(kind, error, traceback)

    return excepthook


def _inside_validation(error: BaseException) -> object:
    """What a check raised while pydantic built a configuration, or ``None``."""
    return error.errors()[0].get("ctx", {}).get("error") if isinstance(error, ValidationError) else None
