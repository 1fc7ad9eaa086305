"""Answers that the data bring along: which tokens of the rendered conversation are theirs.

The messages before an answer are rendered with the generation prompt, and those up to and with it without. Only if the
first ids are how the second begins, the rest is the answer; nothing is ever guessed. Two things can stand in the way.
The template may write a prompt in another way as soon as its answer follows. Or a token may hold the end of the prompt
and the beginning of the answer, for example when a prompt ends in a space: the served model then never sees the
tokens of the given text. Both leave the turn out of the loss, and are counted.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from vllm_specext.training.data.conversation import ASSISTANT, Conversation
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.template import ChatTemplate
from vllm_specext.training.data.turns import AnsweredTurn, begins_with


def given_turns(
    conversations: Sequence[Conversation], template: ChatTemplate, max_length: int
) -> list[tuple[list[AnsweredTurn], Counter[Reason]]]:
    """For each of ``conversations`` its answered turns, and why the others are none."""
    places = [[i for i, each in enumerate(said.messages) if each["role"] == ASSISTANT] for said in conversations]
    found: list[list[AnsweredTurn]] = [[] for _ in conversations]
    left_out: list[Counter[Reason]] = [Counter({Reason.NO_ANSWER: int(not each)}) for each in places]
    number, going_on = 0, list(range(len(conversations)))
    while going_on := [i for i in going_on if number < len(places[i])]:
        rendered = [_render(conversations[i], places[i][number], template) for i in going_on]
        for i, turn in zip(going_on, _turns(rendered, number, template), strict=True):
            if isinstance(turn, Reason):
                left_out[i][turn] += 1
            elif len(turn.prompt) >= max_length:
                left_out[i][Reason.PROMPT_TOO_LONG] += len(places[i]) - number
                places[i] = []  # later prompts are no shorter
            else:
                found[i].append(turn)
        number += 1
    return [(turns, +reasons) for turns, reasons in zip(found, left_out, strict=True)]


def _render(said: Conversation, place: int, template: ChatTemplate) -> tuple[str, str] | Reason:
    """What is before the answer ``place``, with the generation prompt, and the same with the answer."""
    before = template.text(said.messages[:place], said.tools, generation_prompt=True)
    if isinstance(before, Reason):
        return before
    whole = template.text(said.messages[: place + 1], said.tools, generation_prompt=False)
    return whole if isinstance(whole, Reason) else (before, whole)


def _turns(
    rendered: Sequence[tuple[str, str] | Reason], number: int, template: ChatTemplate
) -> Iterator[AnsweredTurn | Reason]:
    ids = iter(template.ids_of([text for pair in rendered if not isinstance(pair, Reason) for text in pair]))
    for pair in rendered:
        yield pair if isinstance(pair, Reason) else _turn(pair, (next(ids), next(ids)), number, template)


def _turn(
    texts: tuple[str, str], ids: tuple[list[int], list[int]], number: int, template: ChatTemplate
) -> AnsweredTurn | Reason:
    prompt, whole = ids
    if not begins_with(whole, prompt):
        return Reason.MERGED if texts[1].startswith(texts[0]) else Reason.NOT_A_PREFIX
    answer = ended(whole[len(prompt) :], template)
    return AnsweredTurn(number, prompt, answer) if answer else Reason.NO_LOSS_TOKEN


def ended(answer: Sequence[int], template: ChatTemplate) -> list[int]:
    """``answer`` up to and with the last token that ends one. What a template writes after it, such as a line's end,
    no target ever generates."""
    ends = [i for i, id in enumerate(answer) if id in template.stop_ids]
    return list(answer[: ends[-1] + 1] if ends else answer)
