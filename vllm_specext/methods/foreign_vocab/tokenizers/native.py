"""Tokenizers beside those of the library `tokenizers`: sentencepiece, tiktoken (and Mistral's Tekken), plain Python."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm_specext.methods.foreign_vocab.tokenizers.family import Family, refusal
from vllm_specext.methods.foreign_vocab.tokenizers.spelling import SPELLINGS, from_pieces, is_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def read_native(tokenizer: "PreTrainedTokenizerBase", samples: Sequence[str]) -> Family:
    """``samples`` decide how the tokens of a tokenizer in plain Python are spelled."""
    mistral = _mistral(tokenizer)
    added = dict(tokenizer.get_added_vocab()) if hasattr(tokenizer, "get_added_vocab") else {}
    for model in (getattr(tokenizer, "sp_model", None), getattr(mistral, "_model", None)):
        if hasattr(model, "serialized_model_proto"):
            return _sentencepiece(tokenizer, model, added)
    if hasattr(mistral, "id_to_byte_piece"):
        specials = range(mistral.num_special_tokens)
        markers = {mistral.id_to_piece(id): id for id in specials}
        return _tiktoken(mistral._model, markers, first=len(specials))
    for part in vars(tokenizer).values():
        if hasattr(part, "decode_single_token_bytes"):
            return _tiktoken(part, added, first=0)
    return _python(tokenizer, samples)


def _mistral(tokenizer: Any) -> Any:
    """Mistral's own tokenizer below the wrappers of transformers and vLLM, or what else stands there."""
    inner = getattr(tokenizer, "tokenizer", None)
    return getattr(getattr(inner, "instruct_tokenizer", None), "tokenizer", inner)


def _sentencepiece(tokenizer: "PreTrainedTokenizerBase", model: Any, markers: dict[str, int]) -> Family:
    import sentencepiece

    protocol: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    definition = protocol.ModelProto.FromString(model.serialized_model_proto())
    spellings = [piece.piece for piece in definition.pieces]
    if list(tokenizer.convert_ids_to_tokens(list(range(len(spellings))))) != spellings:
        raise refusal(tokenizer)  # the wrapper has ids of its own
    definition.normalizer_spec.add_dummy_prefix = False
    own = sentencepiece.SentencePieceProcessor(model_proto=definition.SerializeToString())
    token_bytes = {}
    for id, piece in enumerate(definition.pieces):
        is_added_text = piece.type == piece.USER_DEFINED and is_text(piece.piece)
        if piece.type in (piece.NORMAL, piece.BYTE) or is_added_text:
            token_bytes[id] = from_pieces(piece.piece)
        else:
            markers[piece.piece] = id
    return Family(token_bytes, markers, lambda texts: own.encode(list(texts)))


def _tiktoken(encoding: Any, markers: dict[str, int], first: int) -> Family:
    """``first``: id of the encoding's token 0."""
    for spelling in encoding.special_tokens_set:
        markers.setdefault(spelling, first + encoding.encode_single_token(spelling))
    token_bytes = {first + encoding.encode_single_token(token): token for token in encoding.token_byte_values()}

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        return [[first + id for id in encoding.encode_ordinary(text)] for text in texts]

    return Family(token_bytes, markers, encode_batch)


def _python(tokenizer: "PreTrainedTokenizerBase", samples: Sequence[str]) -> Family:
    markers = {str(token): id for id, token in tokenizer.added_tokens_decoder.items()}
    hidden = {*markers.values(), *tokenizer.all_special_ids}
    ordinary = [id for id in range(len(tokenizer)) if id not in hidden]
    tokens = dict(zip(ordinary, tokenizer.convert_ids_to_tokens(ordinary), strict=True))

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts]

    encoded = encode_batch(samples)
    for to_bytes in SPELLINGS:
        try:
            token_bytes = {id: to_bytes(token) for id, token in tokens.items()}
        except ValueError:
            continue
        read = [b"".join(token_bytes.get(id, b"") for id in ids) for ids in encoded]
        if read == [sample.encode() for sample in samples]:
            return Family(token_bytes, markers, encode_batch)
    raise refusal(tokenizer)
