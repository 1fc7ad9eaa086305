"""Requests that need a chain or no drafts get rows for no more than that, and vLLM's counts stay right.

On real schedulers of both kinds; the workers are played by the tests.
"""

import pickle
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from vllm_specext.engine.scheduler.grammar_walk import DraftedTree
from vllm_specext.engine.scheduler.scheduling import with_draft_limits
from vllm_specext.engine.scheduler.told_parents import tell_parents
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, TARGET, as_long_as_it_pays
from vllm_specext.tree.budget import TreeShape, fixed_schedule, largest_schedule

NODES, LEVELS, TOP_K = 24, 6, 4
TREE = GRIFFIN_CHAIN | {
    "num_speculative_tokens": NODES,
    "tree_depth": LEVELS,
    "tree_top_k": TOP_K,
    "num_speculative_tokens_per_batch_size": [[1, 16, NODES]],
}
KINDS: dict[str, dict[str, Any]] = {
    "tree": {"min_p": 0.1},
    "chain": {},
    "off": {"extra_args": {"speculation": False}},
}


def configuration(speculative: dict[str, Any] | None) -> VllmConfig:
    return EngineArgs(
        model=str(TARGET),
        max_model_len=256,
        max_num_seqs=16,
        enable_prefix_caching=False,
        speculative_config=speculative,
    ).create_engine_config()


@pytest.fixture(scope="module")
def trees() -> VllmConfig:
    return configuration(TREE)


@pytest.fixture(scope="module")
def chains() -> VllmConfig:
    return configuration(GRIFFIN_CHAIN)


def scheduler(config: VllmConfig, base: type[Scheduler] = Scheduler, limited: bool = True) -> Any:
    config.scheduler_config.async_scheduling = base is AsyncScheduler
    config.cache_config.num_gpu_blocks = 1000
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return (with_draft_limits(base) if limited else base)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(1000, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
        log_stats=True,
    )


def request(name: str, prompt: int = 10, max_tokens: int = 100, **sampling: Any) -> Request:
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    return Request(name, list(range(1, prompt + 1)), params, pooling_params=None)


def add_kinds(engine: Any) -> None:
    """A request of each kind. Custom logits processors make chains; here they are there for one alone, so that one step
    has all kinds."""
    for name, sampling in KINDS.items():
        engine._custom_processors = name == "chain"
        engine.add_request(request(name, **sampling))


def drafted(output: SchedulerOutput) -> dict[str, int]:
    return {name: len(output.scheduled_spec_decode_tokens.get(name, [])) for name in output.num_scheduled_tokens}


def deliver(engine: Any, output: SchedulerOutput, tokens: int = 1) -> None:
    """The workers' answer: ``tokens`` emitted for every request, or as many as were scheduled."""
    names = list(output.num_scheduled_tokens)
    emitted = [[5] * min(tokens, 1 + count) for count in drafted(output).values()]
    index = {name: i for i, name in enumerate(names)}
    engine.update_from_output(
        output, ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=emitted)
    )


def draft(engine: Any, output: SchedulerOutput) -> None:
    names = list(output.num_scheduled_tokens)
    engine.update_draft_token_ids(DraftTokenIds(names, [list(range(100, 100 + NODES)) for _ in names]))


def assert_counts_are_right(engine: Any, in_flight: dict[str, int]) -> None:
    """All tokens but the last sampled one are computed, and those in flight are what was scheduled."""
    for name, live in engine.requests.items():
        computed = live.num_computed_tokens - in_flight.get(name, 0)
        assert computed == live.num_tokens - 1, name
        assert live.num_output_placeholders == in_flight.get(name, 0), name


def test_synchronous_scheduling_gives_each_kind_its_rows(trees: VllmConfig) -> None:
    engine = scheduler(trees)
    add_kinds(engine)
    output = engine.schedule()
    for emitted in (1, 4, 9, 1):
        deliver(engine, output, emitted)
        assert_counts_are_right(engine, {})
        draft(engine, output)
        output = engine.schedule()
        assert drafted(output) == {"tree": NODES, "chain": LEVELS, "off": 0}
        assert output.num_scheduled_tokens == {"tree": 1 + NODES, "chain": 1 + LEVELS, "off": 1}
        assert output.scheduled_spec_decode_tokens["chain"] == list(range(100, 100 + LEVELS))


def test_asynchronous_scheduling_gives_each_kind_its_rows(trees: VllmConfig) -> None:
    engine = scheduler(trees, AsyncScheduler)
    add_kinds(engine)
    flying = engine.schedule()
    for emitted in (1, 4, 9, 1):
        output = engine.schedule()
        assert drafted(output) == {"tree": NODES, "chain": LEVELS, "off": 0}
        assert output.num_scheduled_tokens == {"tree": 1 + NODES, "chain": 1 + LEVELS, "off": 1}
        deliver(engine, flying, emitted)
        assert_counts_are_right(engine, output.num_scheduled_tokens)
        flying = output


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
def test_in_chain_mode_only_the_switch_matters(chains: VllmConfig, base: type[Scheduler]) -> None:
    engine = scheduler(chains, base)
    add_kinds(engine)
    output = engine.schedule()
    if base is Scheduler:
        deliver(engine, output)
        names = list(output.num_scheduled_tokens)
        engine.update_draft_token_ids(DraftTokenIds(names, [[7, 8, 9, 10] for _ in names]))
    assert drafted(engine.schedule()) == {"tree": 4, "chain": 4, "off": 0}


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
def test_a_tree_for_a_grammar_is_unknown_to_vllm(
    trees: VllmConfig, monkeypatch: pytest.MonkeyPatch, base: type[Scheduler]
) -> None:
    """Which would take it for a chain. Its tokens and shape are kept for the masks."""
    monkeypatch.setattr(Request, "use_structured_output", property(lambda self: self.request_id == "grammar"))
    engine = scheduler(trees, base)
    validate_tokens, seen = engine.structured_output_manager.validate_tokens, []

    def only_others(live: Request, tokens: list[int]) -> Any:
        seen.append(live.request_id)
        return validate_tokens(live, tokens)

    monkeypatch.setattr(engine.structured_output_manager, "accept_tokens", lambda live, tokens: True)
    monkeypatch.setattr(engine.structured_output_manager, "validate_tokens", only_others)
    for name in ("tree", "grammar"):
        engine.add_request(request(name))
    output = engine.schedule()
    tokens, parents = list(range(100, 100 + NODES)), [0, *range(NODES - 1)]
    drafts = DraftTokenIds(["tree", "grammar"], [tokens, list(tokens)])
    tell_parents(drafts, [parents, parents])
    if base is Scheduler:
        deliver(engine, output)
        engine.update_draft_token_ids(drafts)
        output = engine.schedule()
    else:
        output = engine.schedule()
        engine.update_draft_token_ids_in_output(drafts, output)
    assert output.scheduled_spec_decode_tokens == {"tree": tokens, "grammar": [-1] * NODES}
    assert engine._grammars._drafted == {"grammar": DraftedTree(tokens, parents)}
    assert seen == ["tree"]
    engine.finish_requests("grammar", RequestStatus.FINISHED_ABORTED)
    assert engine._grammars._drafted == {}


def test_a_smaller_schedule_shortens_chains_too(trees: VllmConfig) -> None:
    engine = scheduler(trees, AsyncScheduler)
    engine.dynamic_sd_lookup = [0, 3, 3, 3]
    add_kinds(engine)
    engine.schedule()
    assert drafted(engine.schedule()) == {"tree": 3, "chain": 3, "off": 0}


@pytest.mark.parametrize(("limited", "rows"), [(True, 1), (False, 1 + NODES)])
def test_the_first_step_of_a_request_is_not_padded_with_a_tree_it_never_drafted(
    trees: VllmConfig, monkeypatch: pytest.MonkeyPatch, limited: bool, rows: int
) -> None:
    """As under data parallelism, where vLLM drops the schedule. The second case is vLLM's own scheduler."""
    monkeypatch.setattr(trees.speculative_config, "num_speculative_tokens_per_batch_size", None)
    engine = scheduler(trees, limited=limited)
    engine.add_request(request("running"))
    deliver(engine, engine.schedule())
    engine.add_request(request("new", prompt=1))
    output = engine.schedule()
    assert output.num_scheduled_tokens["new"] == rows
    assert output.num_spec_tokens_to_schedule == NODES


def test_custom_logits_processors_limit_every_request(trees: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees.model_config, "logits_processors", ["module:Processor"])
    engine = scheduler(trees, AsyncScheduler)
    engine.add_request(request("any"))
    engine.schedule()
    assert drafted(engine.schedule()) == {"any": LEVELS}


def test_slots_are_reserved_for_what_growing_a_tree_writes(trees: VllmConfig, chains: VllmConfig) -> None:
    assert scheduler(trees).num_lookahead_tokens == (LEVELS - 1) * TOP_K
    assert scheduler(chains).num_lookahead_tokens == 4


def test_without_a_schedule_the_scheduler_chooses_unless_the_user_forbids_it(
    trees: VllmConfig, chains: VllmConfig
) -> None:
    def schedule_of(config: VllmConfig) -> list[list[int]] | None:
        entries = config.speculative_config.num_speculative_tokens_per_batch_size
        return entries and [list(entry) for entry in entries]

    free = as_long_as_it_pays(TREE)
    for config, most in ((configuration(free), NODES), (configuration(as_long_as_it_pays(GRIFFIN_CHAIN)), 4)):
        assert config.speculative_config.adapts
        assert schedule_of(config) == largest_schedule(most)
    fixed = configuration(free | {"adaptive_drafts": False})
    assert schedule_of(fixed) == fixed_schedule(NODES, current_platform.device_type)
    assert schedule_of(trees) == [[1, 16, NODES]]
    assert schedule_of(chains) is None
    assert not any(config.speculative_config.adapts for config in (fixed, trees, chains))


def test_workers_read_the_trees_shape_from_the_configuration_they_are_sent(
    trees: VllmConfig, chains: VllmConfig
) -> None:
    assert pickle.loads(pickle.dumps(trees)).speculative_config.tree == TreeShape(NODES, LEVELS, TOP_K)
    assert pickle.loads(pickle.dumps(chains)).speculative_config.tree is None


def test_without_our_methods_the_scheduler_is_vllms_own() -> None:
    config = configuration(None)
    assert config.num_lookahead_tokens == 0
    assert issubclass(config.scheduler_config.get_scheduler_cls(), Scheduler)
    assert type(scheduler(config)) is Scheduler
    assert type(scheduler(config, AsyncScheduler)) is AsyncScheduler
