"""Who is told of weights that are loaded while the server runs, and what lies in memory that a sleep keeps."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from vllm.config import VllmConfig

from vllm_specext.engine import kept_memory as memory
from vllm_specext.engine.drafting.derived_weights import DerivedWeights
from vllm_specext.engine.drafting.float8_head import Float8Head
from vllm_specext.engine.drafting.shared_modules import Discarding, SharedModules
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.hooks import weight_patches as patches
from vllm_specext.engine.verification.kept_state import with_kept_memory
from vllm_specext.errors import ConfigurationError
from vllm_specext.registry import METHODS


class Target(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.lm_head = nn.Embedding(4, 2), nn.Linear(2, 4)
        self.loaded: list[Any] = []

    def load_weights(self, weights: Any) -> set[str]:
        self.loaded += weights
        return {name for name, _ in weights}


class Speculator(StepSpeculator):
    def load_draft_model(self, *args: Any) -> Any:
        raise NotImplementedError

    init_cudagraph_manager = capture = load_draft_model


def speculator(method: str = "griffin", drafter: nn.Module | None = None) -> Any:
    made: Any = Speculator.__new__(Speculator)
    made.derived = DerivedWeights(VllmConfig())
    made.target = Target()
    made.model = drafter or nn.Module()
    made.model.embed_tokens, made.model.own = made.target.embed_tokens, nn.Linear(2, 2)
    made.shared = SharedModules(made.model, made.target)
    made.speculative_config = SimpleNamespace(method=method, declared=METHODS[method].declares)
    return made


def worker(method: str = "griffin") -> Any:
    drafting = speculator(method)
    return SimpleNamespace(model_runner=SimpleNamespace(model=drafting.target, speculator=drafting))


def renewals(made: Any) -> list[int]:
    """Filled with what is made anew."""
    found: list[int] = []
    made.derived.add("something", lambda: found.append(1))
    return found


def test_what_was_made_of_weights_is_made_anew_once_however_many_are_loaded() -> None:
    own = worker()
    runner = own.model_runner
    found = renewals(runner.speculator)
    patches.note_loading(runner)
    runner.speculator.begin_step(None)
    assert found == []
    for name in "abc":
        assert runner.model.load_weights([(name, None)]) == {name}
    assert [name for name, _ in runner.model.loaded] == ["a", "b", "c"]
    assert found == []
    runner.speculator.begin_step(None)
    runner.speculator.begin_step(None)
    assert found == [1]


@pytest.mark.parametrize(
    ("wrap", "of"),
    [
        (patches._reload_weights, lambda own: own.model_runner),
        (patches._finish_weight_update, lambda own: own),
    ],
)
def test_vllms_ways_to_load_weights_are_noticed(wrap: Any, of: Any) -> None:
    own = worker()
    found = renewals(own.model_runner.speculator)
    wrap(lambda self: None)(of(own))
    own.model_runner.speculator.begin_step(None)
    assert found == [1]


def test_stages_without_a_drafter_are_left_alone() -> None:
    own = SimpleNamespace(model_runner=SimpleNamespace(speculator=None))
    called: list[int] = []
    for wrap in (patches._start_draft_weight_update, patches._update_weights, patches._finish_weight_update):
        wrap(lambda self: called.append(1))(own)
    assert called == [1, 1, 1]


def test_what_a_drafter_shares_is_out_of_reach_while_it_is_given_weights() -> None:
    own = worker()
    model, embedding = own.model_runner.speculator.model, own.model_runner.model.embed_tokens
    patches._start_draft_weight_update(lambda self: None)(own)
    assert isinstance(model.embed_tokens, Discarding)
    assert model.embed_tokens.load_weights([("weight", None)]) == {"weight"}
    assert isinstance(model.own, nn.Linear)
    patches._update_weights(lambda self, info: None)(own, {})
    assert isinstance(model.embed_tokens, Discarding)
    patches._finish_weight_update(lambda self: None)(own)
    assert model.embed_tokens is embedding


@pytest.mark.parametrize("step", ["start", "update", "finish"])
def test_it_is_back_where_vllm_gives_up(step: str) -> None:
    own = worker()
    embedding = own.model_runner.model.embed_tokens

    def fail(self: Any) -> None:
        raise RuntimeError("no such tensor")

    if step != "start":
        patches._start_draft_weight_update(lambda self: None)(own)
    wrap = {
        "start": patches._start_draft_weight_update,
        "update": patches._update_weights,
        "finish": patches._finish_weight_update,
    }[step]
    with pytest.raises(RuntimeError, match="no such tensor"):
        wrap(fail)(own)
    assert own.model_runner.speculator.model.embed_tokens is embedding


def test_a_second_update_that_vllm_refuses_leaves_the_first_as_it_is() -> None:
    own = worker()

    def refuse(self: Any) -> None:
        raise RuntimeError("already active")

    patches._start_draft_weight_update(lambda self: None)(own)
    with pytest.raises(RuntimeError, match="already active"):
        patches._start_draft_weight_update(refuse)(own)
    assert isinstance(own.model_runner.speculator.model.embed_tokens, Discarding)


def test_methods_whose_drafters_take_no_weights_say_so() -> None:
    taking = {name for name, method in METHODS.items() if method.declares.takes_weights}
    assert METHODS.keys() - taking == {"peagle-tree", "dflash-tree", "dspark-tree", "swift", "given"}
    for name in METHODS.keys() - taking:
        with pytest.raises(ConfigurationError, match=f"a drafter of method '{name}' cannot be given weights while"):
            patches._start_draft_weight_update(lambda self: None)(worker(name))


def test_a_copy_in_float8_of_the_drafters_own_layer_takes_none() -> None:
    drafter, copied = nn.Module(), Float8Head.__new__(Float8Head)
    nn.Module.__init__(copied)
    copied.source = None
    drafter.lm_head = copied
    with pytest.raises(ConfigurationError, match=r"a drafter with an output layer of its own in float8"):
        speculator("eagle3-tree", drafter).prepare_for_weights()


class Allocator:
    def __init__(self) -> None:
        self.tag: str | None = None

    @contextmanager
    def use_memory_pool(self, tag: str) -> Any:
        self.tag = tag
        yield
        self.tag = None


@pytest.mark.parametrize("sleeps", [True, False])
def test_what_verification_has_lies_in_memory_that_a_sleep_keeps(sleeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator()
    monkeypatch.setattr(memory, "get_mem_allocator_instance", lambda: allocator)
    monkeypatch.setattr(memory, "current_platform", SimpleNamespace(is_cuda_alike=lambda: True))
    config: Any = SimpleNamespace(model_config=SimpleNamespace(enable_cumem_allocator=sleeps))

    class Base:
        def __init__(self, vllm_config: Any, model: Any) -> None:
            self.vllm_config, self.tags = vllm_config, [allocator.tag]

        def custom_sampler(self, sampler: Any) -> tuple[Any, Any]:
            self.tags.append(allocator.tag)
            return sampler, sampler

    state = with_kept_memory(Base)(config, None)
    assert state.custom_sampler("vLLM's") == ("vLLM's", "vLLM's")
    assert state.tags == [memory.TAG if sleeps else None] * 2
    assert allocator.tag is None
