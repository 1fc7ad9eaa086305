"""When looked-up tokens are worth more than a drafter's draft."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.sampling_params import SamplingParams

from vllm_specext.engine.drafting.predictions import Predictions, Text
from vllm_specext.engine.requests import Drafting
from vllm_specext.options.base import Predicted
from vllm_specext.tree.lookups import Lookups
from vllm_specext.tree.own_text import OwnText


def test_more_evidence_is_worth_more_and_a_good_drafter_needs_more_of_it() -> None:
    lookups = Lookups()
    worth = [lookups.expected(evidence, 16) for evidence in (1, 2, 4, 8, 16, 32, 64, 1000)]
    assert worth == sorted(worth)
    assert 0 < worth[0] < 1
    assert lookups.expected(8, 4) < lookups.expected(8, 8) < 8
    weak, strong = Lookups(), Lookups()
    for _ in range(40):
        weak.see_draft(4, 0)
        strong.see_draft(4, 6)
        strong.see_draft(100, 6)
    assert weak.pay(4, 8)
    assert not strong.pay(4, 8)
    assert strong.pay(100, 64)
    assert not Lookups().pay(4, 8)  # a drafter is tried first


@pytest.mark.parametrize(("right", "pays"), [(0, False), (8, True)])
def test_what_came_decides_whatever_was_thought_at_first(right: int, pays: bool) -> None:
    lookups = Lookups()
    looked_up = list(range(8))
    for _ in range(60):
        lookups.see(9, looked_up, [*looked_up[:right], 99])
        lookups.see_draft(9, 3)
    assert lookups.pay(9, 8) is pays
    assert lookups.expected(9, 8) == pytest.approx(right, abs=0.8)


def test_tokens_that_the_step_did_not_reach_say_nothing() -> None:
    """A step that gave two tokens says that two came, and nothing of the third."""
    lookups, other = Lookups(), Lookups()
    lookups.see(9, [1, 2, 3], [1, 2])
    other.see(9, [1, 2, 3], [1, 2, 4])
    assert lookups.expected(9, 3) > other.expected(9, 3)
    before = Lookups()
    before.see(9, [1, 2], [])
    assert before.expected(9, 3) == Lookups().expected(9, 3)


def text(prompt: list[int]) -> Text:
    return Text(OwnText(np.array(prompt), 2), len(prompt), is_looked_up=True)


@pytest.mark.parametrize("accepted", [0, 7])
def test_a_drafter_that_is_right_goes_first_and_both_are_learned_from(accepted: int) -> None:
    lookups = Lookups()
    for _ in range(100):
        lookups.see_draft(2, accepted)
    one = text([1, 2, 3, 1, 2])
    given = one.look_up(5, 8, lookups)
    assert given.tolist() == ([3, 1, 2, 3] if accepted == 0 else [])
    assert one.found == (5, 2, [3, 1, 2, 3], accepted == 0)
    drafts, worth = list(lookups._drafts), lookups.expected(2, 8)
    one.teach(lookups, 6, [3, 1])  # another step, which says nothing of this draft
    assert (lookups._drafts, lookups.expected(2, 8)) == (drafts, worth)
    one.teach(lookups, 5, [3, 1])
    assert lookups.expected(2, 8) > worth
    assert (lookups._drafts != drafts) is (accepted > 0)


def test_where_nothing_is_found_the_drafter_drafts() -> None:
    one = text([1, 2, 3])
    assert len(one.look_up(1, 8, Lookups())) == 0
    assert one.found is None


def asking(prompt: list[int], **extra: Any) -> Any:
    params = SamplingParams(extra_args=extra)
    return SimpleNamespace(prefill_token_ids=prompt, prompt_len=len(prompt), sampling_params=params)


class Stepping:
    """Requests in slots 0, 1, ..., of which each step gives some tokens."""

    def __init__(self, predictions: Predictions, *requests: Any) -> None:
        self.predictions, self.texts = predictions, [list(one.prefill_token_ids) for one in requests]
        for slot, request in enumerate(requests):
            predictions.add(slot, request)

    def step(self, came: list[list[int]], length: int, allowed: Drafting = Drafting.TREE) -> list[list[int]]:
        """What is drafted for each request after a step that gave these tokens."""
        self.texts = [text + tokens for text, tokens in zip(self.texts, came, strict=True)]
        ids = torch.zeros(len(self.texts), 99, dtype=torch.int32)
        for slot, tokens in enumerate(self.texts):
            ids[slot, : len(tokens)] = torch.tensor(tokens)
        lengths = torch.tensor([len(tokens) - 1 for tokens in self.texts])
        batch = SimpleNamespace(idx_mapping_np=np.arange(len(came)), seq_lens=lengths, seq_lens_cpu_upper_bound=lengths)
        sampled = torch.tensor([len(tokens) for tokens in came])
        step: Any = SimpleNamespace(
            batch=batch, length=length, requests=len(came), num_sampled=sampled, num_rejected=torch.zeros_like(sampled)
        )
        found = self.predictions.chains(step, ids, np.full(len(came), allowed), depth=3)
        lengths = [0] * len(came) if found is None else found.lengths.tolist()
        return [[] if found is None else found.tokens[at, :n].tolist() for at, n in enumerate(lengths)]


def test_texts_are_looked_through_also_after_steps_without_drafts() -> None:
    predictions = Predictions(Predicted(8, match=2, prompt=True, has_drafter=False), 8)
    stepping = Stepping(predictions, asking([1, 2, 3]), asking([7, 8]), asking([1, 2, 1], speculation=False))
    assert stepping.step([[4], [9], [2]], 8) == [[], [], []]
    assert stepping.step([[1, 2], [7], [1]], 8) == [[3, 4, 1, 2], [], []]
    assert stepping.step([[3], [7], [2]], 0) == [[], [], []]
    assert stepping.step([[4, 1], [8], [1]], 0) == [[], [], []]
    assert stepping.step([[2], [9], [2]], 8)[:2] == [[3, 4, 1, 2, 3, 4, 1, 2], [7, 7, 8, 9, 7, 7]]


def test_a_request_without_trees_has_no_longer_chains_than_it_is_verified() -> None:
    predictions = Predictions(Predicted(8, match=2, prompt=True), 8)
    assert predictions._lookups is not None
    for evidence in (2, 4, 8, 16):
        for _ in range(200):
            predictions._lookups.see_draft(evidence, 0)
    stepping = Stepping(predictions, asking([1, 2, 3, 4, 1]))
    assert stepping.step([[2]], 8, Drafting.CHAIN) == [[3, 4, 1]]
    assert stepping.step([[3]], 8) == [[4, 1, 2, 3, 4, 1]]


def test_what_a_request_predicts_is_always_drafted() -> None:
    predictions = Predictions(Predicted(8, match=2, prompt=True), 8)
    stepping = Stepping(predictions, asking([1, 2], prediction_token_ids=[4, 5, 6]))
    assert stepping.step([[4]], 8) == [[5, 6]]
