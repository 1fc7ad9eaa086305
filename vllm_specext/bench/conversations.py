"""The turns of the prompts that count, with the answers that each chat goes on with.

All rows of a run are asked the same: the answers in a chat are greedy ones of plain decoding, got once before anything
is measured. A prompt's turns end before the first that is too long, and before the first whose plain answer goes round
in circles, because a loop would be easy to draft, there and wherever a chat goes on with it.
"""

from collections.abc import Callable, Sequence

from vllm_specext.bench.prompts import Prompt, Rendering
from vllm_specext.bench.workload import Asked, Chosen
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.loops import is_loop

Answering = Callable[[Sequence[list[int]]], Sequence[list[int]]]
"""Plain greedy answers, in ids, to prompts in ids."""


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
    kept: dict[int, list[Asked]] = {number: [] for number in range(len(prompts))}
    history: dict[int, list[str]] = {number: [] for number in kept}
    lengths: list[int] = []
    too_long = loops = 0
    while history:
        turns = {number: ask(prompts[number], before, rendering) for number, before in history.items()}
        lengths += [len(turn.ids) for turn in turns.values()]
        left = {number: prompts[number].turns - len(before) for number, before in history.items()}
        fitting = {number: turn for number, turn in turns.items() if len(turn.ids) + tokens <= max_model_len}
        too_long += sum(left[number] for number in turns.keys() - fitting.keys())
        answered = [number for number in fitting if left[number] > 1 or not keep_loops]
        found = answering([fitting[number].ids for number in answered]) if answered else []
        answers = dict(zip(answered, found, strict=True))
        looping = set() if keep_loops else {number for number, answer in answers.items() if is_loop(answer)}
        loops += sum(left[number] for number in looping)
        for number in fitting.keys() - looping:
            kept[number].append(fitting[number])
        history = {
            number: [*history[number], rendering.answer(answers[number])]
            for number in fitting
            if left[number] > 1 and number not in looping
        }
    asked = [turn for own in kept.values() for turn in own]
    check(asked, lengths, loops, tokens, max_model_len)
    return Chosen(asked, too_long, loops)


def ask(prompt: Prompt, answers: Sequence[str], rendering: Rendering) -> Asked:
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
