"""Acceptance as a server counts it: against one verification after another, and drafters that are right or wrong."""

import pytest
import torch
from torch import Tensor

from tests.unit.largest_tensor import Largest
from vllm_specext.training import chains
from vllm_specext.training.pipeline.chains import Answered, acceptance, accepted_by_depth, answers_in
from vllm_specext.training.pipeline.method import Draft
from vllm_specext.training.rows import FeatureRow

CHAIN = 3


def text(ids: list[int], begin: int, end: int) -> Answered:
    return Answered(torch.tensor(ids), torch.zeros(len(ids), 4), begin, end)


def drafts(table: dict[int, list[int]]) -> Draft:
    """Drafts by the last token known, in the place of a drafter's."""

    def simulate(token_ids: Tensor, states: Tensor, length: int) -> Tensor:
        assert token_ids.shape[:2] == states.shape[:2]
        return torch.tensor([[table.get(token, [99] * length) for token in token_ids[0].tolist()]])

    return simulate


def test_it_counts_as_decoding_one_verification_after_the_other_does() -> None:
    # The prompt is 7 8, the answer 0 1 2 3 4 5, known to go on with 6 9 9.
    ids = [7, 8, 0, 1, 2, 3, 4, 5, 6, 9, 9]
    table = {0: [1, 2, 0], 3: [0, 5, 6], 4: [5, 6, 9]}
    verifications, depths = accepted_by_depth(drafts(table), [text(ids, 2, 7)], CHAIN)
    # After 0: 1 2 are accepted and 3 comes with them. After 3: nothing, 4 comes. After 4: all of 5 6 9.
    assert (verifications, depths.tolist()) == (3, [2, 2, 1])
    found = acceptance(verifications, depths)
    assert found.tokens_per_verification == pytest.approx(1 + 5 / 3)
    assert found.rate_at_depth == pytest.approx((2 / 3, 2 / 3, 1 / 3))


def test_a_drafter_that_is_always_wrong_and_one_that_is_always_right() -> None:
    ids = list(range(30))
    verifications, depths = accepted_by_depth(drafts({}), [text(ids, 5, 20)], CHAIN)
    assert (verifications, depths.tolist()) == (15, [0, 0, 0])
    verifications, depths = accepted_by_depth(
        drafts({n: [n + 1, n + 2, n + 3] for n in ids}), [text(ids, 5, 20)], CHAIN
    )
    assert (verifications, depths.tolist()) == (4, [4, 4, 4])


def test_nothing_was_verified_in_nothing() -> None:
    assert acceptance(0, torch.zeros(3)).tokens_per_verification == 1


def test_answers_end_where_the_last_chain_is_still_known() -> None:
    mask = torch.tensor([1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1], dtype=torch.uint8)
    states = torch.zeros(15, 4)
    row = FeatureRow(torch.arange(15), mask, states)
    # The first has no prompt; the last is shorter than a chain.
    assert [(one.begin, one.end) for one in answers_in(row, states, CHAIN)] == [(7, 9)]


def test_the_vocabulary_is_scored_a_few_positions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    features, head = torch.randn(2, 30, 4), torch.randn(500, 4)
    expected = (features @ head.T).argmax(dim=-1)
    monkeypatch.setattr(chains, "TOGETHER", 7)
    with Largest() as seen:
        found = chains.most_likely(features, head)
    assert torch.equal(found, expected)
    assert seen.numbers == 2 * 7 * 500
