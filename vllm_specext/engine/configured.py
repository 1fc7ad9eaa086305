"""The replacements that are made only once one of our methods is configured.

They are in modules that other processes need not load.
"""

from collections.abc import Callable
from typing import Any

from vllm_specext.declaration import Reads
from vllm_specext.engine.replacements import replaces
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


@replaces(
    "vllm.v1.engine.input_processor.InputProcessor.process_inputs",
    name="request limits",
    why=(
        "a request with more tokens than the sampler of runner V2 has room for ends the engine; V1 has no such limits; "
        "and a misspelt key of extra_args is lost"
    ),
    how="wrapped once one of our methods is configured: an engine with it refuses such requests",
    upstream="none known: V2 raises in the worker",
    until="vLLM refuses such requests itself",
    signature=(
        "self request_id prompt params supported_tasks arrival_time lora_request tokenization_kwargs trace_headers "
        "priority data_parallel_rank resumable session_id kv_hints"
    ),
)
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


@replaces(
    "vllm.v1.metrics.loggers.StatLoggerManager.__init__",
    name="metrics",
    why=(
        "vLLM reads its entry points for stat loggers only for the async engine, announces them in every server's log, "
        "and with one ignores --disable-log-stats"
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
        from vllm_specext.engine.metrics import attach

        original(self, vllm_config, *args, **kwargs)
        if is_ours(vllm_config.speculative_config):
            attach(self, vllm_config)

    return initialize


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.load_model",
    name="auxiliary hidden states",
    why="the runner has the target give hidden states of its layers for a closed list of method names",
    how="wrapped: for our methods that read them the runner's switch is set before the target is loaded",
    upstream="RFC vllm#36219 (proposer registry)",
    until="vLLM asks the speculator",
    signature="self load_dummy_weights args model kwargs",
)
@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.use_aux_hidden_state_outputs",
    name="switch of auxiliary hidden states",
    why="the runner sets it for a closed list of method names",
    how="set before the target is loaded, for our methods that read them",
    upstream="RFC vllm#36219 (proposer registry)",
    until="vLLM asks the speculator",
    kind="set",
)
def _load_model(original: Callable) -> Callable:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_specext.engine.config import is_ours

        config = self.speculative_config
        if is_ours(config) and config.declared.reads is Reads.AUXILIARY_STATES:
            self.use_aux_hidden_state_outputs = True
        original(self, *args, **kwargs)

    return load_model


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.take_draft_token_ids",
    name="draft lengths",
    why=(
        "vLLM tells its scheduler of the same number of drafted tokens for every request; SWIFT's and SLEM's drafts "
        "end where the drafter is unsure"
    ),
    how="wrapped: where a speculator knows the lengths of its drafts, the lists are cut to them",
    upstream="none: vLLM's drafts are equally long",
    until="vLLM asks the speculator for lengths",
    signature="self",
)
def _take_draft_token_ids(original: Callable) -> Callable:
    def take_draft_token_ids(self: Any) -> Any:
        drafted = original(self)
        lengths = getattr(self.speculator, "draft_lengths", None)
        if drafted is not None and lengths is not None:
            for tokens, length in zip(drafted.draft_token_ids, lengths, strict=True):
                del tokens[length:]
        return drafted

    return take_draft_token_ids


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.sample_tokens",
    name="news of a speculator",
    why="vLLM has no way for what a speculator knows to reach the metrics; SWIFT's search runs in the worker",
    how=(
        "wrapped: where a speculator has news, they go into the step's output, in the place of the statistics of an "
        "encoder-cache connector, which is refused with that method; tensor-parallel ranks are compared"
    ),
    upstream="none: vLLM's speculators have no statistics of their own",
    until="vLLM takes statistics from the speculator",
    signature="self grammar_output",
)
@replaces(
    "vllm.v1.outputs.ModelRunnerOutput.ec_connector_output",
    name="carrier of a speculator's news",
    why="a step's output has no field for what a speculator knows",
    how="set where a speculator has news; encoder-cache connectors, whose field it is, are refused with that method",
    upstream="none: vLLM's speculators have no statistics of their own",
    until="vLLM takes statistics from the speculator",
    kind="set",
)
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


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.initialize_kv_cache",
    name="start-up log",
    why=(
        "vLLM has no moment at which a speculator may say what it will do, its memory included, and its warm-up, whose "
        "requests are drafted chains, runs no kernel of trees"
    ),
    how=(
        "wrapped: afterwards the kernels of verification are compiled on a GPU, and rank 0 logs the method, its "
        "drafts, memory and graphs, one line each"
    ),
    upstream="none: vLLM's speculators log nothing",
    until="vLLM asks the speculator for a description, and warms up with trees",
    signature="self kv_cache_config is_profiling kv_cache_allocation_context",
)
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


@replaces(
    "vllm.v1.worker.gpu.model_states.resolve_model_state_cls",
    name="verification",
    why=(
        "vLLM's rejection sampler keeps the law of the output only; the target's own sampler keeps the very tokens; "
        "vLLM's also drops logprob_token_ids"
    ),
    how=(
        "wrapped: for our methods a subclass of vLLM's choice overrides custom_sampler and notes which requests want "
        "drafts; drawn drafts keep vLLM's rule and get the logprobs of listed tokens"
    ),
    upstream="custom_sampler is the supported hook, but only a model class can supply it",
    until="vLLM lets a speculator supply the verification",
    signature="vllm_config model",
)
def _resolve_model_state_cls(original: Callable) -> Callable:
    def resolve_model_state_cls(vllm_config: Any, model: Any) -> Any:
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.model_state import with_our_verification

        base = original(vllm_config, model)
        config = vllm_config.speculative_config
        return with_our_verification(base, config) if is_ours(config) else base

    return resolve_model_state_cls
