"""Targets whose layers or states verification does not know are refused: drafts would give other tokens with them.

That is known only in the worker, when the model is there.
"""

from functools import cache
from typing import Any

from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention, MLAAttention, PrefillPrefixLMAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from vllm_specext.engine.recurrent.layers import KINDS
from vllm_specext.errors import ConfigurationError

RECURRENT = tuple(kind.module for kind in KINDS)


@cache
def with_known_layers(base: Any) -> Any:
    """Subclass of ``base``, vLLM's state of the target of one of our methods, that cannot be made for other layers."""

    class KnownLayers(base):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            config = self.vllm_config.speculative_config
            refuse_unknown_layers(config.options.method, self.vllm_config, trees=config.tree is not None)

    return KnownLayers


def refuse_own_state(method: str, model: Any) -> None:
    """Refuse a target ``model`` with a class of its own for what vLLM keeps of each request beside the cache. Most read
    the tokens before a row by their places in the batch, and some do not take back what was drafted in vain."""
    if hasattr(model, "get_model_state_cls"):
        raise ConfigurationError(
            f"method {method!r} cannot be combined with a target of the class {type(model).__name__!r}, because it "
            "keeps a state of its own of each request, for which drafts have not been tried."
        )


def refuse_unknown_layers(method: str, vllm_config: VllmConfig, trees: bool) -> None:
    """Refuse a target with a layer in which a row would see others than it should: for ``trees`` any whose class is not
    one that verifies them, because classes made of these have other masks; and one in which rows see later ones."""
    for name, layer in get_layers_from_vllm_config(vllm_config, AttentionLayerBase).items():
        if layer.is_draft_layer:
            continue
        kind = type(layer)
        if isinstance(layer, PrefillPrefixLMAttention):
            raise ConfigurationError(
                f"method {method!r} cannot be combined with the layer {name!r} of the class {kind.__name__!r}, in "
                "which drafted tokens would see those after them."
            )
        if trees and kind not in (Attention, MLAAttention) and not isinstance(layer, RECURRENT):
            raise ConfigurationError(
                f"draft trees cannot be verified with the layer {name!r} of the class {kind.__name__!r}, whose "
                "attention is not known; set 'tree_top_k' to 1."
            )
