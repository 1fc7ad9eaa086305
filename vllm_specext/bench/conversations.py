"""The turns of the prompts that count, with the answers that each chat goes on with.

All rows of a run are asked the same: the answers in a chat are greedy ones of plain decoding, got once before anything
is measured. A prompt's turns end before the first that is too long, and before the first whose plain answer goes round
in circles, because a loop would be easy to draft, there and wherever a chat goes on with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_specext.bench.prompts import Prompt, Rendering
from vllm_specext.bench.workload import Asked, Chosen
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.loops import is_loop

Answering = Callable[[Sequence[list[int]]], Sequence[list[int]]]
"""Plain greedy answers, in ids, to prompts in ids."""


@dataclass
class Conversation:
    """A prompt, the answers to its first turns, and the turns that count."""

    prompt: Prompt
    answers: list[str]
    asked: list[Asked]

    @property
    def goes_on(self) -> bool:
        return len(self.answers) + 1 < self.prompt.turns

    @property
    def left(self) -> int:
        """Turns that have not been answered yet."""
        return self.prompt.turns - len(self.asked)


def choose(
    prompts: Sequence[Prompt],
    rendering: Rendering,
    answering: Answering,
    tokens: int,
    max_model_len: int,
    keep_loops: bool = False,
) -> Chosen:
    """Choose what is asked: turn after turn of all ``prompts``, each with room for an answer of ``tokens``. Where loops
    are kept, only answers that a chat goes on with are asked for."""
    conversations = [Conversation(prompt, [], []) for prompt in prompts]
    lengths: list[int] = []
    too_long = loops = 0
    running = conversations
    while running:
        turns = [ask(each, rendering) for each in running]
        lengths += [len(turn.ids) for turn in turns]
        fitting = [
            (each, turn) for each, turn in zip(running, turns, strict=True) if len(turn.ids) + tokens <= max_model_len
        ]
        too_long += sum(each.left for each in running) - sum(each.left for each, _ in fitting)
        answered = [(each, turn) for each, turn in fitting if each.goes_on or not keep_loops]
        answers = answering([turn.ids for _, turn in answered]) if answered else []
        found = {id(each): list(answer) for (each, _), answer in zip(answered, answers, strict=True)}
        running = []
        for each, turn in fitting:
            answer = found.get(id(each))
            if answer is not None and not keep_loops and is_loop(answer):
                loops += each.left
                continue
            each.asked.append(turn)
            if answer is not None and each.goes_on:
                each.answers.append(rendering.answer(answer))
                running.append(each)
    asked = [turn for each in conversations for turn in each.asked]
    check(asked, lengths, loops, tokens, max_model_len)
    return Chosen(asked, too_long, loops)


def ask(conversation: Conversation, rendering: Rendering) -> Asked:
    prompt, answers = conversation.prompt, conversation.answers
    return Asked(prompt.task, rendering.ids(prompt, answers), rendering.text(prompt, answers))


def check(asked: Sequence[Asked], lengths: Sequence[int], loops: int, tokens: int, max_model_len: int) -> None:
    """Refuse a run in which no turn counts."""
    if asked:
        return
    if loops:
        raise ConfigurationError(
            f"the plain answers of all {loops} prompts that fit are loops, which say nothing about drafts; take other "
            "prompts with --prompts or shorter answers with --tokens."
        )
    raise ConfigurationError(
        f"no prompt fits: with --tokens {tokens} there is room for {max_model_len - tokens} of the {max_model_len} "
        f"tokens of a sequence, and the shortest prompt has {min(lengths)}."
    )
