"""What each layer of a block drafter sees: all of the text or a window of it, all of the block or its earlier rows.

Checkpoints say it in several ways. vLLM's class reads most of them (`_resolve_layer_attention` in ``qwen3_dflash.py``).
But of speculators' DFlash drafters it takes all layers for causal where those with windows are, and of DSpark's those
with windows where none is.
"""

from dataclasses import dataclass
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.keys import Keys
from vllm_specext.methods.stock.config import FULL, WINDOWED, Drafter, layers_of


@dataclass(frozen=True)
class Sight:
    """What a layer's rows see."""

    window: int | None
    """Positions of the text up to the row's own, itself included; ``None``: all."""
    is_causal: bool
    """Whether a row sees the block's earlier rows alone, not those after it."""


def sights_of(drafter: Drafter, rows: int) -> list[Sight]:
    """What the layers of a drafter see, whose blocks have so many ``rows``. Raises ``ConfigurationError``."""
    keys = Keys(drafter)
    said = _kinds(keys, layers_of(drafter))
    everywhere = WINDOWED not in said and keys.section_flag("use_swa")
    with_window = [everywhere or kind == WINDOWED for kind in said]
    window = _window(keys, rows) if any(with_window) else None
    causal = _are_causal(keys, drafter.raw, [kind == WINDOWED for kind in said])
    return [Sight(window if has else None, is_causal) for has, is_causal in zip(with_window, causal, strict=True)]


def _kinds(keys: Keys, layers: int) -> list[str]:
    """By the layers' names alone; ``use_swa`` gives all of them windows, and makes none causal."""
    kinds = keys["layer_types"]
    if kinds is None:
        return [FULL] * layers
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= {FULL, WINDOWED}:
        raise ConfigurationError(
            f"{keys.place}: layer_types is {kinds!r}; expected {FULL!r} or {WINDOWED!r} for each of {layers} layers."
        )
    return kinds


def _window(keys: Keys, rows: int) -> int:
    key = "swa_window_size" if "swa_window_size" in keys.section else "sliding_window"
    window = keys[key]
    if type(window) is not int or window <= rows:
        raise ConfigurationError(
            f"{keys.place}: {keys.name(key)} is {window!r}; windows need an integer above block_size = {rows}."
        )
    return window


def _are_causal(keys: Keys, raw: dict[str, Any], windowed: list[bool]) -> list[bool]:
    """``windowed``: whose kind is that of windows."""
    key = "sliding_window_non_causal"
    if "speculators_model_type" in raw and key in raw:
        if not isinstance(raw[key], bool):
            raise ConfigurationError(f"{keys.place}: {key} is {raw[key]!r}; expected true or false.")
        return [is_windowed and not raw[key] for is_windowed in windowed]
    for said in ("is_causal", "causal"):
        if keys[said] is not None:
            return [keys.flag(said, False)] * len(windowed)
    return windowed
