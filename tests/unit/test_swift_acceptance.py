"""What the watch of SWIFT's acceptance counts, by hand. When its fall starts a search anew: test_swift_restart.py."""

import pytest

from vllm_specext.methods.swift.search.acceptance import AcceptanceWatch, DraftOutcome


def watched(*chains: tuple[int, int]) -> AcceptanceWatch:
    """After chains of which so many tokens were right and so many reached."""
    watch = AcceptanceWatch()
    for right, reached in chains:
        watch.note(DraftOutcome(accepted=right, depth=reached, right=right, reached=reached))
    return watch


def test_the_rate_is_that_of_all_tokens_that_were_reached() -> None:
    assert watched((4, 5), (1, 2)).rate == pytest.approx(5 / 7)


def test_a_chain_whose_first_token_was_wrong_counts() -> None:
    assert watched((4, 5), (0, 1)).rate == pytest.approx(4 / 6)


def test_a_verification_without_a_draft_says_nothing() -> None:
    assert watched((0, 0)).rate is None
    assert watched((0, 0), (4, 5), (0, 0), (1, 2)).rate == pytest.approx(5 / 7)
