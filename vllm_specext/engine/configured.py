"""The replacements of ``catalogue.py`` that are made only once one of our methods is configured.

They are in modules that other processes need not load.
"""

from collections.abc import Callable
from typing import Any

from vllm_specext.declaration import Reads
from vllm_specext.engine.wrapping import wrap


def wrap_front_end() -> None:
    """What takes requests and shows metrics."""
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.metrics.loggers import StatLoggerManager

    wrap(InputProcessor, "process_inputs", _process_inputs)
    wrap(StatLoggerManager, "__init__", _initialize_stat_loggers)


def wrap_worker() -> None:
    import vllm.v1.worker.gpu.model_states as model_states
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    wrap(GPUModelRunner, "load_model", _load_model)
    wrap(GPUModelRunner, "take_draft_token_ids", _take_draft_token_ids)
    wrap(GPUModelRunner, "sample_tokens", _sample_tokens)
    wrap(GPUModelRunner, "initialize_kv_cache", _initialize_kv_cache)
    wrap(model_states, "resolve_model_state_cls", _resolve_model_state_cls)


def _process_inputs(original: Callable) -> Callable:
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.request_keys import check_keys
        from vllm_specext.engine.requests import check_room

        request = original(self, *args, **kwargs)
        if request.sampling_params is not None and is_ours(self.vllm_config.speculative_config):
            check_keys(request.sampling_params, self.vllm_config)
            check_room(request.sampling_params)
        return request

    return process_inputs


def _initialize_stat_loggers(original: Callable) -> Callable:
    def initialize(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.metrics import attach

        original(self, vllm_config, *args, **kwargs)
        if is_ours(vllm_config.speculative_config):
            attach(self, vllm_config)

    return initialize


def _load_model(original: Callable) -> Callable:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_specext.engine.config import is_ours

        config = self.speculative_config
        if is_ours(config) and config.declared.reads is Reads.AUXILIARY_STATES:
            self.use_aux_hidden_state_outputs = True
        original(self, *args, **kwargs)

    return load_model


def _take_draft_token_ids(original: Callable) -> Callable:
    def take_draft_token_ids(self: Any) -> Any:
        drafted = original(self)
        lengths = getattr(self.speculator, "draft_lengths", None)
        if drafted is not None and lengths is not None:
            for tokens, length in zip(drafted.draft_token_ids, lengths, strict=True):
                del tokens[length:]
        return drafted

    return take_draft_token_ids


def _sample_tokens(original: Callable) -> Callable:
    from vllm_specext.engine.config import is_ours
    from vllm_specext.engine.rank_check import check_ranks

    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        output = original(self, grammar_output)
        if is_ours(self.vllm_config.speculative_config):
            check_ranks(self)
        news = getattr(self.speculator, "news", None)
        if output is not None and news is not None and (told := news.take()) is not None:
            from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorStats
            from vllm.v1.outputs import ECConnectorOutput

            stats = ECConnectorStats(told)
            output.model_runner_output.ec_connector_output = ECConnectorOutput(ec_connector_stats=stats)
        return output

    return sample_tokens


def _initialize_kv_cache(original: Callable) -> Callable:
    def initialize_kv_cache(
        self: Any, kv_cache_config: Any, is_profiling: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.report import log_start
        from vllm_specext.engine.warm_up import warm_up

        original(self, kv_cache_config, is_profiling, *args, **kwargs)
        if is_ours(self.vllm_config.speculative_config) and not is_profiling:
            warm_up(self)
            log_start(self)

    return initialize_kv_cache


def _resolve_model_state_cls(original: Callable) -> Callable:
    def resolve_model_state_cls(vllm_config: Any, model: Any) -> Any:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.model_state import with_our_verification

        base = original(vllm_config, model)
        config = vllm_config.speculative_config
        return with_our_verification(base, config) if is_ours(config) else base

    return resolve_model_state_cls
