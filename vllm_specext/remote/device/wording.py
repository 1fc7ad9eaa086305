"""Text for a client's tokens and tokens for its text, by the tokenizer in a bundle."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from vllm_specext.errors import ConfigurationError

UNFINISHED = "\ufffd"
"""What a tokenizer says for the beginning of a character."""


class Wording:
    def __init__(self, folder: Path) -> None:
        """Raises ``ConfigurationError`` where the folder has no tokenizer."""
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{folder} has no tokenizer that can be read ({type(error).__name__}).") from None

    def of_text(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def of_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """By the target's chat template; without one, the contents one after the other. Raises ``ConfigurationError``
        where the template refuses the messages."""
        if not self._tokenizer.chat_template:
            return self.of_text("\n\n".join(str(message["content"]) for message in messages))
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as error:  # a template raises what it likes
            said = " ".join(str(error).split())
            raise ConfigurationError(f"the target's chat template refuses the messages: {said}.") from None
        return ids

    def text(self, ids: list[int]) -> str:
        said: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return said


class Growing:
    """The text of an answer whose tokens come, and may be taken back."""

    def __init__(self, wording: Wording) -> None:
        self._wording = wording
        self._ids: list[int] = []
        self._said = ""

    def more(self, ids: list[int]) -> str:
        """What ``ids`` add to the text; characters that are not whole yet come later."""
        self._ids += ids
        return self._new(self._wording.text(self._ids).rstrip(UNFINISHED))

    def retract(self, count: int) -> int:
        """Take back the last ``count`` tokens; the number of characters that this costs."""
        del self._ids[-count:]
        kept = self._wording.text(self._ids).rstrip(UNFINISHED)
        lost = len(self._said) - len(kept)
        self._said = kept
        return max(0, lost)

    def end(self) -> str:
        """What is left, whole or not."""
        return self._new(self._wording.text(self._ids))

    def _new(self, text: str) -> str:
        if not text.startswith(self._said):  # a tokenizer that words a text's end anew
            return ""
        new, self._said = text[len(self._said) :], text
        return new
