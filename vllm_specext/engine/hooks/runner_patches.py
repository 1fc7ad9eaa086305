"""What vLLM's model runner does at start and in every step for our methods."""

from collections.abc import Callable
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap
from vllm_specext.engine.graph_ladders import use_ladders
from vllm_specext.engine.graph_sizes import capture_all_sizes
from vllm_specext.engine.hooks.lora_patches import wrap_adapters
from vllm_specext.engine.hooks.warm_up_patches import wrap_warm_up
from vllm_specext.engine.hooks.weight_patches import note_loading, wrap_weight_changes


def wrap_runner() -> None:
    """Made in workers, once one of our methods is configured."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    capture_all_sizes()
    use_ladders()
    wrap_adapters()
    wrap_warm_up()
    wrap_weight_changes()
    wrap(GPUModelRunner, "load_model", _load_model)
    wrap(GPUModelRunner, "execute_model", _execute_model)
    wrap(GPUModelRunner, "gather_batch_req_state", _gather_batch_req_state)
    wrap(GPUModelRunner, "take_draft_token_ids", _take_draft_token_ids)
    wrap(GPUModelRunner, "sample_tokens", _sample_tokens)
    wrap(GPUModelRunner, "initialize_kv_cache", _initialize_kv_cache)


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.load_model",
    name="auxiliary hidden states",
    why="the runner has the target give hidden states of its layers for a closed list of methods",
    how="wrapped: the runner's switch is set before the target is loaded, for our methods that read the states",
    upstream="RFC vllm#36219 (proposer registry)",
    until="vLLM asks the speculator",
    signature="self load_dummy_weights args model kwargs",
)
@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.use_aux_hidden_state_outputs",
    name="switch of auxiliary hidden states",
    why="the runner sets it for a closed list of methods",
    how="set before the target is loaded, for our methods that read the states",
    upstream="RFC vllm#36219 (proposer registry)",
    until="vLLM asks the speculator",
    kind="set",
)
def _load_model(original: Callable) -> Callable:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_specext.engine.config import is_ours, reads_aux_states

        config = self.speculative_config
        if is_ours(config) and reads_aux_states(config):
            self.use_aux_hidden_state_outputs = True
        original(self, *args, **kwargs)
        if is_ours(config):
            note_loading(self)

    return load_model


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.execute_model",
    name="what a step drafts",
    why=(
        "a step has one number of drafted tokens, and none for the depth of trees; the number is the most where a "
        "client's tree is to be verified next"
    ),
    how=(
        "wrapped: the depth goes to the speculator, and the number for requests that brought no tree to one that "
        "serves clients"
    ),
    upstream="none: no number of drafted tokens per request, and no trees of several depths",
    until="vLLM has a number of drafted tokens per request, and trees of several depths",
    signature=(
        "self scheduler_output intermediate_tensors dummy_run skip_attn_for_dummy_run is_profile context_len "
        "valid_dummy_state_slots randomize_inputs"
    ),
)
def _execute_model(original: Callable) -> Callable:
    from vllm_specext.engine.drafting.speculator import StepSpeculator
    from vllm_specext.engine.scheduler.client_room import others_in
    from vllm_specext.engine.scheduler.told_depth import depth_in

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.speculator, StepSpeculator):
            self.speculator.begin_step(depth_in(scheduler_output))
        clients = getattr(self.speculator, "clients", None)
        if clients is not None:
            clients.begin_step(others_in(scheduler_output))
        return original(self, scheduler_output, *args, **kwargs)

    return execute_model


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.gather_batch_req_state",
    name="graphs of chains",
    why=(
        "equally long drafts run in one graph, and those of short ones have causal attention; but a short draft may be "
        "what a request's end leaves of a tree"
    ),
    how="wrapped: a step with such a draft is no step of equally long ones, so that it runs in pieces",
    upstream="none: vLLM's drafts are chains",
    until="vLLM verifies trees whose shape differs by request",
    signature="self scheduler_output dummy_run",
)
def _gather_batch_req_state(original: Callable) -> Callable:
    def gather_batch_req_state(self: Any, scheduler_output: Any, dummy_run: bool) -> tuple[Any, int | None]:
        state, equal_rows = original(self, scheduler_output, dummy_run)
        steps = getattr(self.model_state, "steps", None)
        if state is not None and equal_rows is not None and equal_rows > 1 and steps is not None:
            equal_rows = equal_rows if steps.trees.fits_graph(state.idx_mapping_np, equal_rows) else None
        return state, equal_rows

    return gather_batch_req_state


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.take_draft_token_ids",
    name="lengths and shapes of drafts",
    why=(
        "vLLM tells its scheduler of the same number of drafted tokens for every request, and of chains; SWIFT's and "
        "SLEM's drafts end where the drafter is unsure"
    ),
    how=(
        "wrapped: where a speculator knows the lengths of its drafts, the lists are cut to them; with structured "
        "outputs the shape of trees goes along"
    ),
    upstream="none: vLLM's drafts are equally long, and chains",
    until="vLLM asks the speculator for lengths, and tells its scheduler of trees",
    signature="self",
)
def _take_draft_token_ids(original: Callable) -> Callable:
    from vllm_specext.engine.drafting.speculator import StepSpeculator

    def take_draft_token_ids(self: Any) -> Any:
        drafted = original(self)
        if drafted is not None and isinstance(self.speculator, StepSpeculator):
            self.speculator.told_trees.tell(drafted)
        lengths = getattr(self.speculator, "draft_lengths", None)
        if drafted is not None and lengths is not None:
            for tokens, length in zip(drafted.draft_token_ids, lengths, strict=True):
                del tokens[length:]
        return drafted

    return take_draft_token_ids


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.sample_tokens",
    name="statistics of a speculator",
    why="a speculator has no way to the metrics in vLLM; SWIFT's search runs in the worker",
    how=(
        "wrapped: a speculator's statistics go into the step's output, in the place of those of an encoder-cache "
        "connector, which is refused with that method; tensor-parallel ranks are compared"
    ),
    upstream="none: vLLM's speculators have no statistics of their own",
    until="vLLM takes statistics from the speculator",
    signature="self grammar_output",
)
@replaces(
    "vllm.v1.outputs.ModelRunnerOutput.ec_connector_output",
    name="carrier of a speculator's statistics",
    why="a step's output has no field for a speculator's statistics",
    how="set where a speculator has any; the field is that of encoder-cache connectors, refused with that method",
    upstream="none: vLLM's speculators have no statistics of their own",
    until="vLLM takes statistics from the speculator",
    kind="set",
)
def _sample_tokens(original: Callable) -> Callable:
    from vllm_specext.engine.config import is_ours
    from vllm_specext.engine.verification.rank_check import check_ranks

    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        output = original(self, grammar_output)
        if is_ours(self.vllm_config.speculative_config):
            check_ranks(self)
        stats = getattr(self.speculator, "stats", None)
        if output is not None and stats is not None and (changes := stats.changes()) is not None:
            from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorStats
            from vllm.v1.outputs import ECConnectorOutput

            carrier = ECConnectorOutput(ec_connector_stats=ECConnectorStats(changes))
            output.model_runner_output.ec_connector_output = carrier
        return output

    return sample_tokens


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.initialize_kv_cache",
    name="start-up log",
    why=(
        "vLLM never asks a speculator what it will do and how much memory it takes; and vLLM's warm-up has drafts of "
        "one length, so that it runs few of the kernels of trees"
    ),
    how=(
        "wrapped: nothing is held of earlier caches; afterwards the kernels of verification are compiled on a GPU, and "
        "rank 0 logs the method, its drafts, memory and graphs, one line each"
    ),
    upstream="none: vLLM's speculators log nothing",
    until="vLLM asks the speculator for a description, and warms up with drafts of all lengths",
    signature="self kv_cache_config is_profiling kv_cache_allocation_context",
)
def _initialize_kv_cache(original: Callable) -> Callable:
    def initialize_kv_cache(
        self: Any, kv_cache_config: Any, is_profiling: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        from vllm_specext.cpu_runner.recording import records_passes
        from vllm_specext.engine.config import is_ours
        from vllm_specext.engine.drafting.warm_up import warm_up
        from vllm_specext.engine.report import log_start
        from vllm_specext.engine.verification.recorded_target import record_target

        if (forget_caches := getattr(self.model_state, "forget_caches", None)) is not None:
            # vLLM has captured graphs over small caches by now, to see what graphs take. Their memory is to be free.
            forget_caches()
        original(self, kv_cache_config, is_profiling, *args, **kwargs)
        if is_ours(self.vllm_config.speculative_config) and not is_profiling:
            recorded = record_target(self.model, self.vllm_config) if records_passes(self.vllm_config) else None
            if recorded is not None:
                self.speculator.derived.add("the target's passes", recorded.forget)
            warm_up(self)
            log_start(self)

    return initialize_kv_cache
