"""Targets that answer, for tests of training data: a tiny model of transformers, and one that reads its answers off."""

import random
import zlib
from collections.abc import Sequence

import torch

from tests.unit.chat_templates import SPECIAL
from tests.unit.tiny_llama import tiny_llama
from vllm_specext.training.data.answers import Answer, Turn
from vllm_specext.training.data.template import ChatTemplate


class TinyTarget:
    """Samples from a random model, the same answer for the same turn. It keeps what it was asked and said. It answers
    ``at_a_time`` turns in every exchange, any of those that wait, or all."""

    END_BIAS = 3.5
    """Added to the logits of what ends an answer, so that answers have about ten tokens."""

    def __init__(self, template: ChatTemplate, at_a_time: int | None = None) -> None:
        self.template, self.at_a_time = template, at_a_time
        self.model = tiny_llama(1, template.vocab_size, positions=512)
        self.said: dict[str, tuple[Turn, Answer]] = {}
        self.waiting: list[Turn] = []
        self.chooser = random.Random(0)
        self.running: list[int] = []
        """How many turns waited in each exchange."""
        self.abandoned = 0

    def exchange(self, turns: Sequence[Turn]) -> dict[str, Answer | None]:
        self.waiting += turns
        self.running.append(len(self.waiting))
        answers: dict[str, Answer | None] = {}
        while self.waiting and len(answers) != self.at_a_time:
            turn = self.waiting.pop(self.chooser.randrange(len(self.waiting)))
            answers[turn.name] = answer = self._answer(turn)
            assert turn.name not in self.said
            self.said[turn.name] = (turn, answer)
        return answers

    def abandon(self) -> None:
        self.abandoned += len(self.waiting)
        self.waiting = []

    def _answer(self, turn: Turn) -> Answer:
        torch.manual_seed(zlib.crc32(turn.name.encode()))
        (end,) = self.template.stop_ids
        prompt = torch.tensor([turn.prompt_token_ids])
        others = [id for id in self.template.tokenizer.convert_tokens_to_ids(SPECIAL) if id != end]
        ids = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            top_k=0,
            max_new_tokens=turn.max_tokens,
            eos_token_id=end,
            pad_token_id=end,
            suppress_tokens=others,
            sequence_bias=[[[end], self.END_BIAS]],
        )[0, prompt.shape[1] :].tolist()
        return Answer(tuple(ids), ids[-1] == end)


class Scripted:
    """Says the texts of ``script``, one for each turn of a conversation. ``None`` is an answer that was lost."""

    def __init__(self, template: ChatTemplate, script: Sequence[str | None]) -> None:
        self.template, self.script = template, script
        self.turns: list[Turn] = []

    def exchange(self, turns: Sequence[Turn]) -> dict[str, Answer | None]:
        self.turns += turns
        return {turn.name: self._answer(turn, self.script[turn.number]) for turn in turns}

    def abandon(self) -> None:
        """Nothing ever waits."""

    def _answer(self, turn: Turn, text: str | None) -> Answer | None:
        if text is None:
            return None
        (end,) = self.template.stop_ids
        ids = [*self.template.tokenizer(text, add_special_tokens=False)["input_ids"], end]
        return Answer(tuple(ids[: turn.max_tokens]), len(ids) <= turn.max_tokens)
