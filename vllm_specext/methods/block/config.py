"""The configuration of a DFlash or DSpark drafter: the parameters of vLLM's class, the block, and the target's layers
that it reads.

DFlash's checkpoints have their own keys in ``dflash_config``, DSpark's at the top; vLLM looks in both places.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.checkpoint import BlockShape
from vllm_specext.methods.stock.config import (
    FULL,
    Drafter,
    check_arithmetic,
    draft_vocabulary_size,
    flag,
    integer,
    layers_of,
)

DSPARK = "Qwen3DSparkForCausalLM"
"""vLLM's class of DSpark drafters."""

_SECTION = "dflash_config"
MAX_BLOCK = 65
"""The most rows of a block; released drafters have up to 16."""


@dataclass(frozen=True)
class Block:
    rows: int
    """Rows of a block, the last sampled token's among them, that the drafter was trained with."""
    from_anchor: bool
    """Whether each row gives the token after its own, the last sampled token's row the first drafted one. Otherwise
    each mask token gives its own."""
    target_layers: list[int]
    """Numbers of the target's layers whose output the drafter reads, from 0 up."""
    is_causal: bool
    """Whether a row sees the block's earlier rows alone."""

    @property
    def levels(self) -> int:
        """Tokens that are drafted one after another."""
        return self.rows if self.from_anchor else self.rows - 1


class Keys:
    """Keys of a drafter's configuration, in its section or at the top."""

    def __init__(self, drafter: Drafter) -> None:
        self.place, self.config = drafter.place, drafter.config
        section = getattr(self.config, _SECTION, None) or {}
        if not isinstance(section, dict):
            raise ConfigurationError(f"{self.place}: {_SECTION} is {section!r}; expected a JSON object.")
        self.section: dict[str, Any] = section

    def __getitem__(self, key: str) -> Any:
        """``None`` where it is in neither."""
        return self.section.get(key, getattr(self.config, key, None))

    def name(self, key: str) -> str:
        """The key as a message names it."""
        return f"{_SECTION}.{key}" if key in self.section else key

    def flag(self, key: str, default: bool) -> bool:
        value = self[key]
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigurationError(f"{self.place}: {self.name(key)} is {value!r}; expected true or false.")
        return value

    def require(self, key: str, value: bool) -> None:
        """Refuse another value than this, which is the default."""
        if self.flag(key, value) is not value:
            raise ConfigurationError(
                f"{self.place}: {self.name(key)} is {not value}; supported is {str(value).lower()} alone."
            )


def drafter_shape(drafter: Drafter, states: int, target_hidden_size: int) -> BlockShape:
    """The parameters of a drafter that reads so many ``states`` of the target. Raises ``ConfigurationError``."""
    place, config = drafter.place, drafter.config
    sizes = {key: integer(place, config, key) for key in ("vocab_size", "hidden_size", "intermediate_size")}
    heads = integer(place, config, "num_attention_heads")
    check_arithmetic(drafter)
    rank = integer(place, config, "markov_rank") if drafter.class_name == DSPARK else None
    confidence = None
    if rank is not None and flag(place, config, "enable_confidence_head"):
        with_markov = flag(place, config, "confidence_head_with_markov")
        confidence = sizes["hidden_size"] + (rank if with_markov else 0)
    return BlockShape(
        vocab_size=sizes["vocab_size"],
        draft_vocab_size=draft_vocabulary_size(drafter, sizes["vocab_size"]),
        hidden_size=sizes["hidden_size"],
        target_hidden_size=target_hidden_size,
        states=states,
        layers=layers_of(drafter),
        heads=heads,
        kv_heads=integer(place, config, "num_key_value_heads"),
        head_dim=integer(place, config, "head_dim", sizes["hidden_size"] // heads),
        mlp_size=sizes["intermediate_size"],
        bias=flag(place, config, "attention_bias"),
        markov_rank=rank,
        confidence_size=confidence,
    )


def block_of(drafter: Drafter, target_layers: int) -> Block:
    """What a drafter's configuration says of its blocks; the target has so many layers.

    Raises ``ConfigurationError``.
    """
    place, keys = drafter.place, Keys(drafter)
    # vLLM's reader of speculators' checkpoints leaves the key out.
    rows = drafter.raw.get("block_size")
    if type(rows) is not int or not 2 <= rows <= MAX_BLOCK:
        raise ConfigurationError(f"{place}: block_size is {rows!r}; expected an integer of 2 to {MAX_BLOCK}.")
    mask, vocab_size = keys["mask_token_id"], drafter.config.vocab_size
    if type(mask) is not int or not 0 <= mask < vocab_size:
        name = keys.name("mask_token_id")
        raise ConfigurationError(f"{place}: {name} is {mask!r}; expected a token below vocab_size = {vocab_size}.")
    keys.require("use_aux_hidden_state", True)
    keys.require("attention_sink_bias", False)
    if drafter.class_name == DSPARK:
        from_anchor = keys.flag("sample_from_anchor", True)
        if (head := keys["markov_head_type"]) not in (None, "vanilla"):
            raise ConfigurationError(f"{place}: markov_head_type is {head!r}; vLLM's class has 'vanilla' alone.")
    else:
        from_anchor = False
        keys.require("sample_from_anchor", False)
    return Block(rows, from_anchor, _target_layers(keys, target_layers), _is_causal(keys))


def _target_layers(keys: Keys, count: int) -> list[int]:
    """vLLM's reader of speculators' checkpoints leaves its own numbers beside them, which are one higher."""
    place, ids, key = keys.place, keys["target_layer_ids"], keys.name("target_layer_ids")
    if not isinstance(ids, list | tuple) or not ids or any(type(id) is not int for id in ids):
        raise ConfigurationError(f"{place}: {key} is {ids!r}; expected a list of integers.")
    if any(id >= later for id, later in pairwise(ids)) or ids[0] < 0 or ids[-1] >= count:
        raise ConfigurationError(
            f"{place}: {key} is {list(ids)}; expected ascending numbers of the target's layers, 0 to {count - 1}."
        )
    if (said := keys["num_target_layers"]) not in (None, count):
        raise ConfigurationError(f"{place}: num_target_layers is {said!r} but the target has {count} layers.")
    return list(ids)


def _is_causal(keys: Keys) -> bool:
    """As vLLM's class finds it, for layers that all see the whole text."""
    if use := keys.section.get("use_swa"):
        raise ConfigurationError(f"{keys.place}: {_SECTION}.use_swa is {use!r}; windows are not supported.")
    kinds = keys["layer_types"]
    if kinds is not None and (not isinstance(kinds, list) or {*kinds} - {FULL}):
        raise ConfigurationError(f"{keys.place}: layer_types is {kinds!r}; supported is {FULL!r} alone.")
    return keys.flag("is_causal", keys.flag("causal", False))
