"""Turns that are asked together, of whatever answers them."""

from collections.abc import Sequence

from vllm_specext.training.data.answers import Answer, Answerer, Turn


def ask(answerer: Answerer, turns: Sequence[Turn]) -> list[Answer | None]:
    """One answer for each of ``turns``, in their order."""
    answers = dict(answerer.exchange(turns))
    while len(answers) < len(turns):
        answers |= answerer.exchange([])
    return [answers[turn.name] for turn in turns]
