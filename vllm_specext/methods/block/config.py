"""The configuration of a DFlash or DSpark drafter: the parameters of vLLM's class, the block, and the target's layers
that it reads."""

from dataclasses import dataclass
from itertools import pairwise

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.checkpoint import MAX_BLOCK, BlockShape, Second
from vllm_specext.methods.block.keys import Keys
from vllm_specext.methods.block.scales import Scales, scales_of
from vllm_specext.methods.block.sight import Sight, sights_of
from vllm_specext.methods.checkpoints import MAX_DIMENSION
from vllm_specext.methods.stock.config import (
    Drafter,
    check_arithmetic,
    draft_vocabulary_size,
    flag,
    integer,
    layers_of,
)

DSPARK = "Qwen3DSparkForCausalLM"
"""vLLM's class of DSpark drafters."""
DFLASH2 = "DFlash2Qwen3ForCausalLM"
"""vLLM's class of DFlash's second kind."""

MOST = {
    "conv_kernel_size": MAX_BLOCK,
    "conv_group_size": MAX_DIMENSION,
    "selector_rank": MAX_DIMENSION,
    "selector_top_k": 64,
}
"""The largest numbers of DFlash2's keys; released drafters have 2, 16, 256 and 16."""


@dataclass(frozen=True)
class Block:
    rows: int
    """Rows of a block, the last sampled token's among them, that the drafter was trained with."""
    from_anchor: bool
    """Whether each row gives the token after its own, the last sampled token's row the first drafted one. Otherwise
    each mask token gives its own."""
    target_layers: list[int]
    """Numbers of the target's layers whose output the drafter reads, from 0 up."""
    sights: list[Sight]
    """What each layer sees."""
    scales: Scales

    @property
    def levels(self) -> int:
        """Tokens that are drafted one after another."""
        return self.rows if self.from_anchor else self.rows - 1


def drafter_shape(drafter: Drafter, states: int, target_hidden_size: int) -> BlockShape:
    """The parameters of a drafter that reads so many ``states`` of the target. Raises ``ConfigurationError``."""
    place, config = drafter.place, drafter.config
    sizes = {key: integer(place, config, key) for key in ("vocab_size", "hidden_size", "intermediate_size")}
    heads = integer(place, config, "num_attention_heads")
    check_arithmetic(drafter)
    rank = None
    if drafter.class_name == DSPARK:
        if Keys(drafter)["markov_rank"] == 0:
            raise ConfigurationError(f"{place}: markov_rank is 0; method 'dflash-tree' serves such drafters.")
        rank = integer(place, config, "markov_rank")
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
        sinks=_has_sinks(drafter),
        markov_rank=rank,
        confidence_size=confidence,
        second=_second(drafter, sizes["vocab_size"], sizes["hidden_size"]) if drafter.class_name == DFLASH2 else None,
    )


def _second(drafter: Drafter, vocab_size: int, hidden_size: int) -> Second:
    """vLLM's class reads these keys in the section alone."""
    keys = Keys(drafter)
    taps, group, rank, candidates = (keys.section_integer(key, most) for key, most in MOST.items())
    if hidden_size % group:
        name = keys.name("conv_group_size")
        raise ConfigurationError(
            f"{drafter.place}: {name} is {group}, which does not divide hidden_size = {hidden_size}."
        )
    if (size := draft_vocabulary_size(drafter, vocab_size)) != vocab_size:
        raise ConfigurationError(
            f"{drafter.place}: draft_vocab_size is {size}; DFlash2's drafters score all {vocab_size} tokens."
        )
    return Second(taps, group, rank, candidates)


def is_deepseeks(drafter: Drafter) -> bool:
    """Whether it is laid out as DSpark's, of which DeepSeek's DFlash drafters are those without a Markov head."""
    return drafter.class_name == DSPARK or drafter.raw.get("architectures") == ["Qwen3DSparkModel"]


def block_of(drafter: Drafter, target_layers: int) -> Block:
    """What a drafter's configuration says of its blocks; the target has so many layers.

    Raises ``ConfigurationError``.
    """
    place, keys = drafter.place, Keys(drafter)
    # vLLM's reader of speculators' checkpoints leaves the key out.
    rows = drafter.raw.get("block_size", keys.section.get("block_size"))
    if type(rows) is not int or not 2 <= rows <= MAX_BLOCK:
        raise ConfigurationError(f"{place}: block_size is {rows!r}; expected an integer of 2 to {MAX_BLOCK}.")
    mask, vocab_size = keys["mask_token_id"], drafter.config.vocab_size
    if type(mask) is not int or not 0 <= mask < vocab_size:
        name = keys.name("mask_token_id")
        raise ConfigurationError(f"{place}: {name} is {mask!r}; expected a token below vocab_size = {vocab_size}.")
    keys.require("use_aux_hidden_state", True)
    if is_deepseeks(drafter):
        from_anchor = keys.flag("sample_from_anchor", True)
        if (head := keys["markov_head_type"]) not in (None, "vanilla"):
            raise ConfigurationError(f"{place}: markov_head_type is {head!r}; vLLM's class has 'vanilla' alone.")
        if drafter.class_name != DSPARK and keys["markov_rank"] not in (None, 0):
            raise ConfigurationError(
                f"{place}: markov_rank is {keys['markov_rank']!r}; method 'dspark-tree' reads its Markov head."
            )
    else:
        from_anchor = False
        keys.require("sample_from_anchor", False)
    layers = _target_layers(keys, target_layers)
    return Block(rows, from_anchor, layers, sights_of(drafter, rows), scales_of(drafter))


def _has_sinks(drafter: Drafter) -> bool:
    keys, key = Keys(drafter), "attention_sink_bias"
    return keys.flag(key if key in keys.section else "add_swa_attention_sink_bias", False)


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
