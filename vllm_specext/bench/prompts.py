"""Prompts with the task that each belongs to, and how the target is asked them.

A prompt is a text that the target goes on with, or a chat. Of a chat, every message of the user's that no answer
follows is asked in its turn, after the answers to those before it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import bundled_prompts

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)


class Message(NamedTuple):
    role: Role
    content: str


@dataclass(frozen=True)
class Prompt:
    """``text`` to be continued as it is, or a ``chat`` in place of it. ``where`` says in which file and row it stands,
    for errors."""

    task: str
    text: str = ""
    chat: tuple[Message, ...] = ()
    where: str = field(default="", compare=False)

    @property
    def turns(self) -> int:
        """How many times the target is asked."""
        return len(open_places(self.chat)) if self.chat else 1

    def turn(self, answers: Sequence[str]) -> list[Message]:
        """The messages of the turn that follows ``answers``, those to the turns before it."""
        places = open_places(self.chat)
        given = dict(zip(places, answers, strict=False))
        messages: list[Message] = []
        for place, message in enumerate(self.chat[: places[len(answers)] + 1]):
            messages.append(message)
            if place in given:
                messages.append(Message("assistant", given[place]))
        return messages


def open_places(chat: Sequence[Message]) -> list[int]:
    """Places of the user's messages that no answer follows."""
    following = [*(message.role for message in chat[1:]), "user"]
    return [
        place
        for place, (message, after) in enumerate(zip(chat, following, strict=True))
        if message.role == "user" and after != "assistant"
    ]


def question(task: str, *turns: str, where: str = "") -> Prompt:
    """A chat of which the target is asked every one of the user's ``turns``."""
    return Prompt(task, chat=tuple(Message("user", turn) for turn in turns), where=where)


def bundled() -> list[Prompt]:
    return [Prompt(row["kind"], row["text"]) for row in bundled_prompts()]


def first_of_each(prompts: Iterable[Prompt], per_task: int) -> list[Prompt]:
    """The first ``per_task`` prompts of every task, task by task in the order in which the tasks appear."""
    seen: Counter[str] = Counter()
    kept = []
    for prompt in prompts:
        seen[prompt.task] += 1
        if seen[prompt.task] <= per_task:
            kept.append(prompt)
    tasks = list(seen)
    return sorted(kept, key=lambda prompt: tasks.index(prompt.task))


class Rendering:
    """Prompts as the target is asked them: ids for engines and our client, text for ``vllm bench serve``."""

    def __init__(self, target: str) -> None:
        from transformers import AutoTokenizer

        self.target = target
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(target)
        except Exception as error:  # the hub client and the loaders raise many kinds
            raise ConfigurationError(
                f"--target is {target!r}, whose tokenizer cannot be loaded ({type(error).__name__})."
            ) from None

    def text(self, prompt: Prompt, answers: Sequence[str] = ()) -> str:
        """The turn after ``answers``. A chat goes through the target's chat template; without one, a question that
        stands alone is asked as it is, and a longer chat is refused."""
        if not prompt.chat:
            return prompt.text
        if self.tokenizer.chat_template:
            return self._through_template(prompt, answers)
        if len(prompt.chat) > 1:
            raise ConfigurationError(
                f"{prompt.where or 'a prompt'} is a chat of {len(prompt.chat)} messages, but the tokenizer of --target "
                f"{self.target!r} has no chat template: take a target that has one, or prompts of one question."
            )
        return prompt.chat[0].content

    def ids(self, prompt: Prompt, answers: Sequence[str] = ()) -> list[int]:
        text = self.text(prompt, answers)
        # A chat template writes the special tokens itself.
        templated = bool(prompt.chat and self.tokenizer.chat_template)
        return list(self.tokenizer.encode(text, add_special_tokens=not templated))

    def answer(self, ids: Sequence[int]) -> str:
        """An answer as a chat goes on with it: without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _through_template(self, prompt: Prompt, answers: Sequence[str]) -> str:
        turns = [message._asdict() for message in prompt.turn(answers)]
        try:
            return str(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
        except Exception as error:  # a template raises what it likes
            raise ConfigurationError(
                f"{prompt.where or 'a prompt'} is a chat that the chat template of --target {self.target!r} refuses: "
                f"{' '.join(str(error).split())}."
            ) from None
