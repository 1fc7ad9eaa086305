"""The target's chat template, and the tokens that it makes of a conversation.

Templates run in transformers' sandbox, and no code of a checkpoint does. A template that writes today's date gives
other tokens tomorrow; most of those read a flag for the date.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.end_ids import end_ids
from vllm_specext.training.data.conversation import Message
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.template_flags import check_flags

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What a template raises over messages that it is not made for."""

FINAL_CHANNEL = "<|channel|>final<|message|>"
"""What comes before the final channel of an answer in OpenAI's format Harmony, which gpt-oss has. Its template refuses
messages that have channels in them, and drops what earlier answers reasoned."""

Flag = bool | int | float | str


class ChatTemplate:
    """The template of ``tokenizer`` with ``flags``; ``stop_ids`` are the tokens that end an answer.

    Raises ``ConfigurationError`` if a flag is none of the template's. Without a template it still encodes text.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        stop_ids: Collection[int],
        flags: Mapping[str, Flag] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.stop_ids = frozenset(stop_ids)
        self.flags = dict(flags or {})
        self.source = tokenizer.get_chat_template() if tokenizer.chat_template else None
        self.vocab_size: int = len(tokenizer)
        if self.source is not None:
            check_flags(self.flags, self.source)

    def text(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, *, generation_prompt: bool
    ) -> str | Reason:
        """The conversation as the template writes it, with or without the beginning of the next answer."""
        if self.source is None:
            raise ConfigurationError(
                "the target has no chat template, so that no prompt can be made of messages; expected rows of text, or "
                "of token_ids with loss_mask."
            )
        try:
            written = self.tokenizer.apply_chat_template(
                # Copies: a template cannot change them, but a tokenizer's own method could.
                [dict(message) for message in messages],
                tools=list(tools) if tools else None,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.flags,
            )
        except ERRORS:
            return Reason.TEMPLATE_REFUSED
        return str(written)

    def ids(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, *, generation_prompt: bool
    ) -> list[int] | Reason:
        """The same as token ids."""
        written = self.text(messages, tools, generation_prompt=generation_prompt)
        return written if isinstance(written, Reason) else self.ids_of([written])[0]

    def ids_of(self, written: Sequence[str]) -> list[list[int]]:
        """Conversations as the template writes them as token ids, on all cores. It wrote all special tokens, too."""
        if not written:
            return []
        return list(self.tokenizer(list(written), add_special_tokens=False, verbose=False)["input_ids"])

    def encode(self, text: str) -> list[int]:
        """``text`` without a template, with the special tokens that the target's tokenizer puts around a text."""
        return list(self.tokenizer(text, verbose=False)["input_ids"])

    def answer_text(self, ids: Sequence[int]) -> str:
        """The content of a message whose answer is ``ids``.

        Special tokens stay in it as text, such as marks of reasoning, by which templates find what to drop. Of an
        answer in channels it is what the final one says.
        """
        end = len(ids) - (ids[-1] in self.stop_ids if ids else 0)
        text = self.tokenizer.decode(list(ids[:end]), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text).rpartition(FINAL_CHANNEL)[2]

    def record(self) -> dict[str, Any]:
        """What tells the template apart, for ``stats.json``."""
        hashed = hashlib.sha256(self.source.encode()).hexdigest() if self.source is not None else None
        return {"sha256": hashed, "flags": self.flags, "stop_ids": sorted(self.stop_ids)}


def load_template(target: str, flags: Mapping[str, Flag] | None = None) -> ChatTemplate:
    """The template of ``target``, a folder or a hub id. ``ConfigurationError`` if it has no tokenizer."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ConfigurationError(
            f"the target {target!r} has no tokenizer that can be read without code of its own ({type(error).__name__})."
        ) from None
    try:
        generation = GenerationConfig.from_pretrained(target)
    except OSError:
        try:  # where there is none, vLLM has these
            generation = GenerationConfig.from_model_config(AutoConfig.from_pretrained(target, trust_remote_code=False))
        except (OSError, ValueError):
            generation = GenerationConfig()
    return ChatTemplate(tokenizer, end_ids(tokenizer.eos_token_id, generation.eos_token_id), flags)
