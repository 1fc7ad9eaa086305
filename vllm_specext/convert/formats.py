"""What format a checkpoint has: by the names of its tensors, and for those of speculators by ``config.json``."""

from collections.abc import Collection, Mapping
from typing import Any

from vllm_specext.convert.kinds import Format
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.from_eagle import is_eagle

SPECULATORS_TYPE = "speculators_model_type"

_GRIFFIN = ("fc.fc.", "fc.mlp.", "fc.post_attention_layernorm.")
_MOA = ("Ekv2E.", "self_attention.", "cross_attention.", "layer_self_attention.")
_EAGLE3 = ("midlayer.", "layers.0.hidden_norm.", "norm.", "input_norm.", "fc_norm.", "d2t", "t2d")
_DFLASH = "hidden_norm.weight"
_MARKOV = ("markov_head.", "model.markov_head.")
_BLOCK_TYPES, _BLOCK_CLASSES = ("dflash", "dflash2", "dspark"), ("DFlash", "Qwen3DSpark", "Qwen3OmniDSpark")
_MOST_SHOWN = 3


def recognise(place: str, config: Mapping[str, Any], names: Collection[str], blocks: bool = False) -> Format:
    """The format of a checkpoint with tensors of these ``names``; ``place`` is its folder. Whether the checkpoint is
    complete is not looked at. Raises ``ConfigurationError`` for formats that are not read here, and unless ``blocks``
    for drafters of blocks."""
    if _any(names, _GRIFFIN):
        return Format.GRIFFIN
    if _any(names, _MOA):
        return Format.MOA
    kind = config.get(SPECULATORS_TYPE)
    if _drafts_blocks(config, kind, names):
        if blocks:
            return Format.DSPARK if _any(names, _MARKOV) else Format.DFLASH
        raise ConfigurationError(
            f"{place} is a DFlash or DSpark checkpoint, which drafts a block at once and has no other format: vLLM "
            "serves it as it is, with method dflash or dspark, and most are served by dflash-tree or dspark-tree too."
        )
    if is_nested(config):
        if kind != "eagle3":
            raise ConfigurationError(
                f"{place}/config.json: {SPECULATORS_TYPE} is {kind!r}; of the types of speculators, only 'eagle3' is "
                "read."
            )
        return Format.SPECULATORS
    if _any(names, _EAGLE3):
        return Format.EAGLE3
    if is_eagle(names):
        return Format.EAGLE
    raise ConfigurationError(
        f"{place} has no format that is known here: none of its {len(names)} tensors ({_first(names)}) is fc.weight "
        "(EAGLE), fc.fc.weight (GRIFFIN), Ekv2E.weight (MoA) or midlayer.hidden_norm.weight (EAGLE-3)."
    )


def is_nested(config: Mapping[str, Any]) -> bool:
    """Whether the keys are laid out as speculators does. A drafter with ``model_type`` beside them has its sizes
    there, and the keys only name its target."""
    return config.get("model_type") is None and (SPECULATORS_TYPE in config or "speculators_config" in config)


def _drafts_blocks(config: Mapping[str, Any], kind: Any, names: Collection[str]) -> bool:
    made_by = config.get("architectures")
    listed = made_by if isinstance(made_by, list) else []
    return (
        _DFLASH in names
        or (isinstance(kind, str) and kind.startswith(_BLOCK_TYPES))
        or any(isinstance(name, str) and name.startswith(_BLOCK_CLASSES) for name in listed)
    )


def _any(names: Collection[str], prefixes: tuple[str, ...]) -> bool:
    return any(name.startswith(prefixes) for name in names)


def _first(names: Collection[str]) -> str:
    shown = sorted(names)[:_MOST_SHOWN]
    return ", ".join([*shown, "…"] if len(names) > _MOST_SHOWN else shown)
