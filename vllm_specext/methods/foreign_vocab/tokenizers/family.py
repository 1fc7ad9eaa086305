"""What has to be known of a tokenizer, whatever works inside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Family:
    token_bytes: dict[int, bytes]
    """Bytes of the ordinary tokens, by id."""
    markers: dict[str, int]
    """Ids of special, added and control tokens, by what they are called."""
    encode_batch: Callable[[Sequence[str]], list[list[int]]]
    """Encodes texts and adds no token and no dummy space. Where a text spells a marker out it may give the marker."""


def name_of(tokenizer: "PreTrainedTokenizerBase") -> str:
    return getattr(tokenizer, "name_or_path", "") or "a tokenizer without a name"


def refusal(tokenizer: "PreTrainedTokenizerBase") -> ConfigurationError:
    return ConfigurationError(
        f"The tokens of {name_of(tokenizer)} ({type(tokenizer).__name__}) cannot be turned into bytes; target and "
        "drafter need tokenizers of the kinds byte-level BPE, SentencePiece, tiktoken or Mistral's."
    )
