"""Targets whose layers or states verification does not know are refused, in a sentence that names them."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from vllm.model_executor.layers.attention import Attention, MLAAttention, PrefillPrefixLMAttention
from vllm.model_executor.layers.attention.rswa_attention import RSWAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

from vllm_specext.engine.verification.known_layers import refuse_own_state, refuse_unknown_layers
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
