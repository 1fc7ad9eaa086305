"""Targets whose layers or states verification does not know are refused, in a sentence that names them."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from vllm.model_executor.layers.attention import Attention, MLAAttention, PrefillPrefixLMAttention
from vllm.model_executor.layers.attention.rswa_attention import RSWAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

from vllm_specext.engine.config import SpecExtConfig
from vllm_specext.engine.hooks import runner_parts
from vllm_specext.engine.verification import model_state
from vllm_specext.engine.verification.known_layers import (
    refuse_own_state,
    refuse_unknown_layers,
    with_known_layers,
)
from vllm_specext.errors import ConfigurationError


class Selecting(nn.Module, AttentionLayerBase):
    """Attends to what it selects, as layers of MiniMax M3 do."""

    def get_attn_backend(self) -> Any:
        raise NotImplementedError

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        raise NotImplementedError


def target(*kinds: type, drafter: tuple[type, ...] = ()) -> Any:
    """A configuration with a layer of each of these classes, which has no weights."""
    layers: dict[str, Any] = {f"layers.{i}": kind.__new__(kind) for i, kind in enumerate(kinds)}
    for i, kind in enumerate(drafter):
        layers[f"draft.{i}"] = kind.__new__(kind)
        object.__setattr__(layers[f"draft.{i}"], "is_draft_layer", True)
    return SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))


@pytest.mark.parametrize("trees", [True, False])
def test_layers_that_verification_knows_are_open(trees: bool) -> None:
    refuse_unknown_layers("griffin", target(Attention, MambaMixer2), trees)
    refuse_unknown_layers("griffin", target(MLAAttention), trees)


@pytest.mark.parametrize("other", [Selecting, RSWAAttention])
def test_a_layer_of_another_class_verifies_no_trees(other: type) -> None:
    said = rf"the layer 'layers\.1' of the class '{other.__name__}'.*'tree_top_k' to 1"
    with pytest.raises(ConfigurationError, match=said):
        refuse_unknown_layers("eagle3-tree", target(Attention, other), trees=True)
    refuse_unknown_layers("eagle3-tree", target(Attention, other), trees=False)


@pytest.mark.parametrize("trees", [True, False])
def test_a_layer_whose_rows_see_later_ones_verifies_nothing(trees: bool) -> None:
    with pytest.raises(ConfigurationError, match="'PrefillPrefixLMAttention', in which drafted tokens would see"):
        refuse_unknown_layers("slem", target(PrefillPrefixLMAttention), trees)


def test_layers_of_a_drafter_are_its_own_affair() -> None:
    refuse_unknown_layers("griffin", target(Attention, drafter=(Selecting, PrefillPrefixLMAttention)), trees=True)


def test_a_target_with_a_state_of_its_own_is_refused() -> None:
    class LongcatFlashNgramForCausalLM:
        @staticmethod
        def get_model_state_cls() -> type:
            return object

    with pytest.raises(ConfigurationError, match=r"^method 'given' cannot be .* class 'LongcatFlashNgramForCausalLM'"):
        refuse_own_state("given", LongcatFlashNgramForCausalLM())
    refuse_own_state("given", object())


def test_the_worker_asks_before_it_makes_the_targets_state(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(model_state, "with_our_verification", lambda base, config: made.append(base) or base)
    config: Any = SpecExtConfig.__new__(SpecExtConfig)
    config.options = SimpleNamespace(method="given")
    resolve = runner_parts._resolve_model_state_cls(lambda vllm_config, model: dict)
    given: Any = SimpleNamespace(speculative_config=config)
    own = SimpleNamespace(get_model_state_cls=lambda: dict)
    with pytest.raises(ConfigurationError, match="keeps a state of its own"):
        resolve(given, own)
    assert made == []
    assert resolve(given, object()) is dict
    assert resolve(SimpleNamespace(speculative_config=None), own) is dict
    assert made == [dict]


@pytest.mark.parametrize("tree", [None, object()])
def test_a_state_of_a_target_is_not_made_for_an_unknown_layer(tree: Any) -> None:
    class Base:
        def __init__(self, vllm_config: Any) -> None:
            self.vllm_config = vllm_config

    given = target(Attention, Selecting)
    given.speculative_config = SimpleNamespace(tree=tree, options=SimpleNamespace(method="griffin"))
    if tree is None:
        with_known_layers(Base)(given)
    else:
        with pytest.raises(ConfigurationError, match="'Selecting'"):
            with_known_layers(Base)(given)
