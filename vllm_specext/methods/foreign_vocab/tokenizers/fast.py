"""Tokenizers of the library `tokenizers`: byte-level BPE and Metaspace."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vllm_specext.methods.foreign_vocab.tokenizers.family import Family, refusal
from vllm_specext.methods.foreign_vocab.tokenizers.spelling import SPACE, from_byte_level, from_pieces, is_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def read_fast(tokenizer: "PreTrainedTokenizerBase") -> Family:
    backend: Any = tokenizer.backend_tokenizer
    definition = {name: _state(getattr(backend, name)) for name in ("decoder", "pre_tokenizer", "normalizer")}
    decoders = list(_parts(definition["decoder"]))
    kinds = {part.get("type") for part in [*decoders, *_parts(definition["pre_tokenizer"])]}
    if "ByteLevel" in kinds:
        to_bytes = from_byte_level
    elif "Metaspace" in kinds or any(part.get("pattern") == {"String": SPACE} for part in decoders):
        to_bytes = from_pieces
    else:
        raise refusal(tokenizer)
    vocabulary = backend.get_vocab(with_added_tokens=False)
    token_bytes = {id: to_bytes(token) for token, id in vocabulary.items()}
    markers = {}
    for id, token in backend.get_added_tokens_decoder().items():
        if not token.special and is_text(token.content):
            token_bytes[id] = token.content.replace(SPACE, " ").encode()
        else:
            markers[token.content] = id
    unknown = _unknown(backend.model)
    if unknown in vocabulary:
        markers[unknown] = vocabulary[unknown]

    own = backend
    if _adds_spaces(definition) or getattr(backend.model, "dropout", None) or not getattr(tokenizer, "is_ours", False):
        # Nobody else changes it while threads encode.
        own = type(backend).from_str(json.dumps(_bare(json.loads(backend.to_str()))))
    own.no_truncation()
    own.no_padding()
    own.encode_special_tokens = True  # what spells a special token out is text

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        if len(texts) == 1:
            return [own.encode(texts[0], add_special_tokens=False).ids]
        return [encoding.ids for encoding in own.encode_batch_fast(list(texts), add_special_tokens=False)]

    return Family(token_bytes, markers, encode_batch)


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """A component and all that it is made of."""
    if isinstance(component, dict):
        yield component
        component = list(component.values())
    if isinstance(component, list):
        for part in component:
            yield from _parts(part)


def _state(component: Any) -> Any:
    return None if component is None else json.loads(component.__getstate__())


def _unknown(model: Any) -> str | None:
    if hasattr(model, "unk_token"):
        return model.unk_token
    unknown = _state(model).get("unk_id")  # of a unigram model, which does not show it
    return None if unknown is None else str(model.id_to_token(unknown))


def _adds_spaces(definition: dict[str, Any]) -> bool:
    parts = (definition[key] for key in ("normalizer", "pre_tokenizer"))
    return any(_without_dummy_space(part) != part for part in parts)


def _bare(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition of the same tokenizer that cuts, pads and adds nothing."""
    bare = {**definition, "truncation": None, "padding": None, "post_processor": None}
    for key in ("normalizer", "pre_tokenizer"):
        bare[key] = _without_dummy_space(definition[key])
    if "dropout" in definition["model"]:
        bare["model"] = {**definition["model"], "dropout": None}
    return bare


def _without_dummy_space(component: Any) -> Any:
    if isinstance(component, list):
        return [_without_dummy_space(part) for part in component if not _is_prepend(part)]
    if not isinstance(component, dict):
        return component
    if _is_prepend(component):
        return None
    changed = {key: _without_dummy_space(value) for key, value in component.items()}
    if "prepend_scheme" in changed:
        changed["prepend_scheme"] = "never"
    if "add_prefix_space" in changed:
        changed["add_prefix_space"] = False
    return changed


def _is_prepend(component: Any) -> bool:
    return isinstance(component, dict) and component.get("type") == "Prepend"
