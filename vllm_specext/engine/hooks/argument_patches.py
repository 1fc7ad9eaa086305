"""How the arguments ``--speculative-config``, ``--spec-method`` and the model's name are read, before vLLM builds its
configuration from them."""

from collections.abc import Callable
from typing import Any, get_args

from vllm_specext.cpu_runner.eager_layers import are_wanted
from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import when_loaded, wrap
from vllm_specext.engine.hooks.front_end_patches import wrap_front_end
from vllm_specext.engine.hooks.served_drafter import override_with_drafter
from vllm_specext.errors import ConfigurationError
from vllm_specext.registry import METHODS, RUNNABLE
from vllm_specext.speculative_config import keys, with_flags


def wrap_arguments() -> None:
    # Only processes that parse arguments load this module.
    when_loaded("vllm.engine.arg_utils", _wrap_module)


def _wrap_module(module: Any) -> None:
    wrap(module, "maybe_override_with_speculators", override_with_drafter)
    wrap(module.EngineArgs, "create_speculative_config", _create_speculative_config)


@replaces(
    "vllm.engine.arg_utils.EngineArgs.create_speculative_config",
    name="configuration",
    why="the list of speculative methods is a closed Literal",
    how=(
        "wrapped: our methods get a SpecExtConfig; unknown methods and what is no JSON object are refused in a "
        "sentence; all others get what vLLM's own function returns"
    ),
    upstream="RFC vllm#36219 (proposer registry)",
    until="vLLM lets plug-ins register speculative methods",
    signature="self target_model_config target_parallel_config",
)
def _create_speculative_config(original: Callable) -> Callable:
    def create_speculative_config(self: Any, target_model_config: Any, target_parallel_config: Any) -> Any:
        are_wanted()  # refuses here what a worker would otherwise refuse later
        raw = {} if self.speculative_config is None else keys(self.speculative_config)
        method = raw.get("method", self.spec_method)
        if method in RUNNABLE or self.spec_method in RUNNABLE:
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
