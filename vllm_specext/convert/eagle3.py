"""An EAGLE-3 drafter whichever layout it came in, with its keys as vLLM's class for it reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vllm_specext.convert.files import Source
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import MAX_DIMENSION
from vllm_specext.methods.eagle.checkpoint import DrafterShape
from vllm_specext.methods.stock.checkpoint import check_checkpoint

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
BEFORE_RESIDUAL, BEFORE_FC = "norm_before_residual", "norm_before_fc"
NORMS = (BEFORE_RESIDUAL, BEFORE_FC, "fc_norm", "norm_output")
DRAFT_VOCABULARY, TARGET_SIZE = "draft_vocab_size", "target_hidden_size"
OUTER = (DRAFT_VOCABULARY, TARGET_SIZE, LAYER_IDS, *NORMS)
"""Keys that no language model has. Both layouts have them at the top of the file, with the same meaning."""

FIRST, OTHERS_FIRST = "layers.0.", "midlayer."
"""The first layer's name with speculators, and in the layout of SafeAILab and SpecForge."""

_MOST_LAYERS = 64
_STATES = 3


@dataclass(frozen=True)
class Eagle3:
    layer: dict[str, Any]
    """The keys of the drafter as a language model of one layer or more."""
    model_type: str
    """``llama`` or ``qwen3``."""
    vocab_size: int
    hidden_size: int
    draft_vocab_size: int
    target_hidden_size: int | None
    """``None``: the drafter's own."""
    layer_ids: list[int] | None
    """The target's layers that are read, in vLLM's numbers: the input of layer ``i``. ``None``: the default."""
    norms: dict[str, bool]
    """All of ``NORMS``."""
    unread: tuple[str, ...]
    """Keys of the source that nothing reads, and no layout keeps."""

    @property
    def reads_size(self) -> int:
        """The target's hidden size."""
        return self.hidden_size if self.target_hidden_size is None else self.target_hidden_size

    def outer(self) -> dict[str, Any]:
        """The keys of ``OUTER``, all of them."""
        return {
            DRAFT_VOCABULARY: self.draft_vocab_size,
            TARGET_SIZE: self.target_hidden_size,
            LAYER_IDS: self.layer_ids,
            **self.norms,
        }


def read(
    source: Source, layer: dict[str, Any], model_type: str, outer: Mapping[str, Any], unread: tuple[str, ...]
) -> Eagle3:
    """The drafter with the keys ``layer`` of a language model and ``outer`` of EAGLE-3. All tensors are compared with
    what follows from the keys: names, shapes, types, values. Raises ``ConfigurationError``."""
    place = source.place
    vocab_size, hidden_size = (integer(place, layer, key) for key in ("vocab_size", "hidden_size"))
    target_size = None if outer.get(TARGET_SIZE) is None else integer(place, outer, TARGET_SIZE)
    missing = outer.get(DRAFT_VOCABULARY) is None
    drafter = Eagle3(
        layer=layer,
        model_type=model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        draft_vocab_size=vocab_size if missing else integer(place, outer, DRAFT_VOCABULARY, vocab_size),
        target_hidden_size=target_size,
        layer_ids=_layer_ids(place, outer.get(LAYER_IDS)),
        norms={key: flag(place, outer, key) for key in NORMS},
        unread=unread,
    )
    if layer.get("quantization_config") is not None:
        raise ConfigurationError(
            f"{place}: quantization_config is set; drafters have to be unquantised, which vllm-specext convert --to "
            "bfloat16 makes those in float8 and NVFP4."
        )
    check_checkpoint(source.folder, shape_of(place, drafter))
    return drafter


def renamed(tensors: Mapping[str, Tensor], first: str) -> dict[str, Tensor]:
    """``tensors`` with the name ``first`` for the first layer."""
    other = OTHERS_FIRST if first == FIRST else FIRST
    return {first + name.removeprefix(other) if name.startswith(other) else name: x for name, x in tensors.items()}


def integer(place: str, keys: Mapping[str, Any], key: str, most: int = MAX_DIMENSION) -> int:
    value = keys.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigurationError(f"{place}: {key} is {value!r}; expected an integer in 1..{most}.")
    return value


def flag(place: str, keys: Mapping[str, Any], key: str) -> bool:
    value = keys.get(key)
    if not isinstance(value, bool | None):
        raise ConfigurationError(f"{place}: {key} is {value!r}; expected true or false.")
    return bool(value)


def _layer_ids(place: str, ids: Any) -> list[int] | None:
    if not ids:
        return None
    if not isinstance(ids, list) or not all(type(id) is int and id >= 0 for id in ids) or sorted(set(ids)) != ids:
        raise ConfigurationError(f"{place}: {LAYER_IDS} is {ids!r}; expected ascending numbers of the target's layers.")
    return ids


def shape_of(place: str, drafter: Eagle3) -> DrafterShape:
    """The parameters of vLLM's class with these keys. Raises ``ConfigurationError``."""
    layer, is_qwen = drafter.layer, drafter.model_type == "qwen3"
    heads = integer(place, layer, "num_attention_heads")
    # transformers' defaults for Llama follow from the other keys, those for Qwen3 do not.
    kv_heads = (
        heads
        if layer.get("num_key_value_heads") is None and not is_qwen
        else integer(place, layer, "num_key_value_heads")
    )
    head_dim = (
        drafter.hidden_size // heads
        if layer.get("head_dim") is None and not is_qwen
        else integer(place, layer, "head_dim")
    )
    eps = layer.get("rms_norm_eps")
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
        raise ConfigurationError(f"{place}: rms_norm_eps is {eps!r}; expected a number between 0 and 1.")
    if layer.get("hidden_act", "silu") != "silu":
        raise ConfigurationError(f"{place}: hidden_act is {layer['hidden_act']!r}; an EAGLE-3 drafter has 'silu'.")
    integer(place, layer, "max_position_embeddings", 2**31)
    states = len(drafter.layer_ids) if drafter.layer_ids else layer.get("num_aux_hidden_states") or _STATES
    qkv_bias = flag(place, layer, "attention_bias")
    return DrafterShape(
        is_eagle3=True,
        vocab_size=drafter.vocab_size,
        draft_vocab_size=drafter.draft_vocab_size,
        hidden_size=drafter.hidden_size,
        target_hidden_size=drafter.reads_size,
        states=integer(place, {"num_aux_hidden_states": states}, "num_aux_hidden_states", _MOST_LAYERS),
        layers=integer(place, layer, "num_hidden_layers", _MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_size=integer(place, layer, "intermediate_size"),
        qkv_bias=qkv_bias,
        o_bias=(qkv_bias or flag(place, layer, "bias")) and not is_qwen,
        mlp_bias=flag(place, layer, "mlp_bias") and not is_qwen,
        qk_norm=is_qwen,
        input_norm=drafter.norms[BEFORE_FC],
        fc_norm=drafter.norms["fc_norm"],
    )
