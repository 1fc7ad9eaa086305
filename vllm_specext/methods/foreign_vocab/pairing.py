"""A target and a drafter with tokenizers of their own, as the methods for foreign vocabularies see them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.end_ids import end_ids, ends_of
from vllm_specext.methods.foreign_vocab.distributions.overlap import shared_tokens
from vllm_specext.methods.foreign_vocab.text.bridge import Bridge
from vllm_specext.methods.foreign_vocab.text.roles import map_markers, opening
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import SAMPLES, Vocabulary, read_vocabulary


@dataclass(frozen=True)
class Pairing:
    target: Vocabulary
    drafter: Vocabulary
    markers: dict[int, tuple[int, ...]]
    """The target's markers by id, each in the drafter's tokens."""
    opening: tuple[int, ...]
    """The drafter's tokens that its texts begin with."""

    def bridge(self, lookbehind: int) -> Bridge:
        return Bridge(self.target, self.drafter, self.markers, lookbehind=lookbehind, opening=self.opening)

    @cached_property
    def shared(self) -> dict[int, int]:
        """The tokens that both have: the drafter's id -> the target's, ascending by the drafter's."""
        return shared_tokens(
            self.target.token_bytes,
            self.drafter.token_bytes,
            target_ends=self.target.ends,
            drafter_ends=self.drafter.ends,
        )

    @cached_property
    def draft_tokens_per_target_token(self) -> float:
        """How many of the drafter's tokens sample texts have for one of the target's, on average."""
        counts = (sum(map(len, of.encode_batch(SAMPLES))) for of in (self.drafter, self.target))
        return next(counts) / max(next(counts), 1)

    def spellings(self) -> list[list[int]]:
        """One or more of the drafter's tokens for each of the target's: those with the same bytes. An end gets the
        drafter's end. So does a token that the drafter cannot spell: it is never drafted, and any token would do."""
        end = [min(self.drafter.ends, default=0)]
        texts = {id: text for id, own in enumerate(self.target.token_bytes) if (text := _text(own)) is not None}
        encoded = dict(zip(texts, self.drafter.encode_batch(list(texts.values())), strict=True))
        by_bytes: dict[bytes, int] = {}
        for id, own in enumerate(self.drafter.token_bytes):
            if own:
                by_bytes.setdefault(own, id)
        spelled = []
        for id, own in enumerate(self.target.token_bytes):
            ids = encoded.get(id, [])
            if own is not None and self.drafter.bytes_of(ids) != own:
                ids = _in_longest_tokens(own, by_bytes)
            spelled.append(ids or end)
        return spelled


def _text(own: bytes | None) -> str | None:
    try:
        return None if own is None else own.decode()
    except UnicodeDecodeError:
        return None


def _in_longest_tokens(text: bytes, by_bytes: dict[bytes, int]) -> list[int]:
    """``text`` in the longest tokens there are; nothing where a byte has no token."""
    ids, longest, start = [], max(map(len, by_bytes)), 0
    while start < len(text):
        end = next((e for e in range(min(start + longest, len(text)), start, -1) if text[start:e] in by_bytes), None)
        if end is None:
            return []
        ids.append(by_bytes[text[start:end]])
        start = end
    return ids


def read_pairing(target: Any, drafter: Any) -> Pairing:
    """``target`` and ``drafter`` are vLLM's ``ModelConfig`` of each."""
    targets, drafters = load_tokenizer(target), load_tokenizer(drafter)
    own, foreign = _read(target, targets), _read(drafter, drafters)
    return Pairing(own, foreign, map_markers(targets, drafters, own, foreign), opening(drafters))


def _read(model: Any, tokenizer: Any) -> Vocabulary:
    ends = ends_of(model) | end_ids(getattr(tokenizer, "eos_token_id", None))
    return read_vocabulary(tokenizer, size=model.get_vocab_size(), ends=ends)


def load_tokenizer(model: Any) -> Any:
    """Raises ``ConfigurationError``, one sentence, where there is none."""
    from vllm.tokenizers import cached_tokenizer_from_config

    try:
        return cached_tokenizer_from_config(model)
    except Exception as error:  # the loaders raise many kinds; each means that there is no tokenizer
        raise ConfigurationError(
            f"the tokenizer of {model.tokenizer!r} cannot be loaded ({type(error).__name__}); a drafter with a foreign "
            "vocabulary needs its tokenizer's files beside its weights."
        ) from None
