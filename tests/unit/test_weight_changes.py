"""Who is told of weights that are loaded while the server runs, and what lies in memory that a sleep keeps."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

from vllm_specext.engine import kept_memory as memory
from vllm_specext.engine.drafting.derived_weights import DerivedWeights
from vllm_specext.engine.drafting.draft_head import DraftHead
from vllm_specext.engine.drafting.float8_head import Float8Head
from vllm_specext.engine.drafting.recorded_passes import RecordedPasses
from vllm_specext.engine.drafting.shared_modules import SharedModules
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.hooks import weight_patches as patches
from vllm_specext.engine.verification.kept_state import with_kept_memory
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.mtp.assistant import AssistantSpeculator
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


class Drafter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def load_weights(self, weights: Any) -> None:
        self.loaded += [name for name, _ in weights]


def speculator(method: str = "griffin", drafter: nn.Module | None = None) -> Any:
    made: Any = Speculator.__new__(Speculator)
    made.derived = DerivedWeights(VllmConfig())
    made.target = Target()
    made.model = drafter or Drafter()
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


def test_weights_that_were_loaded_in_part_are_noticed() -> None:
    own = worker()
    found = renewals(own.model_runner.speculator)

    def fail(*args: Any) -> None:
        raise RuntimeError("no such tensor")

    own.model_runner.model.load_weights = fail
    patches.note_loading(own.model_runner)
    for load in (own.model_runner.model.load_weights, patches._reload_weights(fail)):
        with pytest.raises(RuntimeError, match="no such tensor"):
            load(own.model_runner)
        own.model_runner.speculator.begin_step(None)
    assert found == [1, 1]


def test_copies_of_output_layers_are_found_in_a_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    made, drafter, found = speculator(), Drafter(), []
    for name in ("draft_head", "other_head"):
        setattr(drafter, name, DraftHead(nn.Linear(2, 4), None, renew=partial(found.append, name)))
    monkeypatch.setattr(DraftModelSpeculator, "load_model", lambda self, target: setattr(self, "model", drafter))
    made.vllm_config = SimpleNamespace(model_config=SimpleNamespace(enable_cumem_allocator=False))
    made.load_model(Target())
    made.derived.weights_changed()
    made.begin_step(None)
    assert found == ["draft_head", "other_head"]


def test_recorded_passes_are_recorded_anew() -> None:
    made = speculator()
    made.draft_graphs = RecordedPasses(4)
    made.draft_graphs.capture_passes({(1, "pass"): lambda: torch.zeros(3) + 1})
    made.draft_graphs.replay(1, "pass")
    assert made.draft_graphs.has(1, "pass")
    made._forget_recordings()
    assert not made.draft_graphs.has(1, "pass")
    assert made.draft_graphs.replay(1, "pass").tolist() == [1, 1, 1]


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
    assert list(model.parameters()) == list(model.own.parameters())
    names = ("embed_tokens.weight", "model.layers.3.embed_tokens.weight", "own.weight", "embed_tokens_2.weight")
    model.load_weights((name, None) for name in names)
    assert model.loaded == list(names[2:])
    patches._update_weights(lambda self, info: None)(own, {})
    assert model.embed_tokens is not embedding
    patches._finish_weight_update(lambda self: None)(own)
    assert model.embed_tokens is embedding
    model.load_weights((name, None) for name in names)
    assert model.loaded[2:] == list(names)


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
    assert own.model_runner.speculator.model.embed_tokens is not own.model_runner.model.embed_tokens


def test_methods_whose_drafters_take_no_weights_say_so() -> None:
    taking = {name for name, method in METHODS.items() if method.declares.takes_weights}
    assert METHODS.keys() - taking == {"peagle-tree", "dflash-tree", "dspark-tree", "swift", "given"}
    for name in METHODS.keys() - taking:
        with pytest.raises(ConfigurationError, match=f"a drafter of method '{name}' cannot be given weights while"):
            patches._start_draft_weight_update(lambda self: None)(worker(name))
    supported = patches._supports_draft_weight_updates(lambda self: True)
    assert {name for name in METHODS if supported(worker(name))} == taking
    assert not patches._supports_draft_weight_updates(lambda self: False)(worker("griffin"))


def test_gemmas_assistants_take_none() -> None:
    made: Any = AssistantSpeculator.__new__(AssistantSpeculator)
    with pytest.raises(ConfigurationError, match="a drafter that is an assistant cannot be given weights while the"):
        made.prepare_for_weights()


def test_a_copy_in_float8_of_the_drafters_own_layer_takes_none() -> None:
    drafter, copied = Drafter(), Float8Head.__new__(Float8Head)
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
    assert state.tags == ["runtime" if sleeps else None] * 2
    assert allocator.tag is None
    with memory.cache_memory(config):
        assert allocator.tag == ("kv_cache" if sleeps else None)
