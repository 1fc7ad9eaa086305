"""What vLLM's front end, which takes requests and shows metrics, does for our methods."""

from collections.abc import Callable
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap
from vllm_specext.engine.hooks.prediction_patches import wrap_predictions


def wrap_sampling_params() -> None:
    from vllm.sampling_params import SamplingParams

    wrap(SamplingParams, "_validate_spec_decode", _validate_spec_decode)


def wrap_front_end() -> None:
    """Made once one of our methods is configured, because only the front end loads these modules."""
    import vllm.plugins
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.metrics.loggers import StatLoggerManager

    wrap(InputProcessor, "process_inputs", _process_inputs)
    wrap(StatLoggerManager, "__init__", _initialize_stat_loggers)
    wrap(vllm.plugins, "load_endpoint_plugins", _load_endpoint_plugins)
    wrap_predictions()


@replaces(
    "vllm.plugins.load_endpoint_plugins",
    name="endpoint of clients that draft",
    why="vLLM warns in every server's log of an endpoint plug-in that VLLM_PLUGINS does not name, used or not",
    how="wrapped once one of our methods is configured: ours is among them, and adds a route with client_drafts only",
    upstream="none: endpoint plug-ins are opt-in by design; the operator's client_drafts is that here",
    until="an endpoint plug-in can be asked for by the configuration",
    signature="supported_tasks",
)
def _load_endpoint_plugins(original: Callable) -> Callable:
    def load_endpoint_plugins(*args: Any, **kwargs: Any) -> Any:
        from vllm_specext.engine.clients.endpoint import RemoteDrafting

        return [*original(*args, **kwargs), RemoteDrafting()]

    return load_endpoint_plugins


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
    "vllm.v1.engine.input_processor.InputProcessor.process_inputs",
    name="request limits",
    why=(
        "the sampler of runner V2 has room for so many tokens of a request, and one with more ends the engine; vLLM "
        "says nothing of a misspelt key of extra_args"
    ),
    how="wrapped once one of our methods is configured: an engine with it refuses both",
    upstream="none known: V2 raises in the worker",
    until="vLLM refuses such requests itself",
    signature=(
        "self request_id prompt params supported_tasks arrival_time lora_request tokenization_kwargs trace_headers "
        "priority data_parallel_rank resumable session_id kv_hints"
    ),
)
def _process_inputs(original: Callable) -> Callable:
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_specext.engine.client_trees import check_client_tree
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.predictions import check_prediction
        from vllm_specext.engine.request_keys import check_keys
        from vllm_specext.engine.requests import check_room

        request = original(self, *args, **kwargs)
        if request.sampling_params is not None and is_ours(self.vllm_config.speculative_config):
            check_keys(request.sampling_params, self.vllm_config)
            check_prediction(request.sampling_params, self.vllm_config.model_config)
            check_client_tree(request.sampling_params, self.vllm_config)
            check_room(request.sampling_params)
        return request

    return process_inputs


@replaces(
    "vllm.v1.metrics.loggers.StatLoggerManager.__init__",
    name="metrics",
    why=(
        "vLLM reads its entry points for stat loggers only for the async engine and announces them in every server's "
        "log; where there is one, --disable-log-stats has no effect"
    ),
    how="wrapped once one of our methods is configured: an engine with it gets the metrics of draft trees",
    upstream="vllm#22456 (the entry points)",
    until="vLLM lets a configuration bring its stat logger",
    signature=(
        "self vllm_config engine_idxs custom_stat_loggers enable_default_loggers aggregate_engine_logging client_count"
    ),
)
def _initialize_stat_loggers(original: Callable) -> Callable:
    def initialize(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.hooks.stat_loggers import attach

        original(self, vllm_config, *args, **kwargs)
        if is_ours(vllm_config.speculative_config):
            attach(self, vllm_config)

    return initialize
