"""The chain walk against a plain Python loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_specext.tree.walk import accept_chain

WIDTH = 5

chains = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2)), min_size=1, max_size=WIDTH), min_size=1, max_size=6
)
"""Per request: (drawn, drafted) of each row, over three tokens so that drafts are often right."""


def walk_slowly(rows: list[tuple[int, int]]) -> list[int]:
    emitted = [rows[0][0]]
    for drawn, drafted in rows[1:]:
        if drafted != emitted[-1]:
            break
        emitted.append(drawn)
    return emitted


@given(chains)
def test_the_chain_walk_emits_what_a_plain_loop_emits(requests: list[list[tuple[int, int]]]) -> None:
    rows = [row for request in requests for row in request]
    bounds = torch.tensor([0, *torch.tensor([len(r) for r in requests]).cumsum(0).tolist()])
    drawn, drafted = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
    emitted, num_sampled = accept_chain(drawn, drafted, bounds, WIDTH)
    assert emitted.shape == (len(requests), WIDTH)
    for request, tokens, count in zip(requests, emitted.tolist(), num_sampled.tolist(), strict=True):
        assert tokens[:count] == walk_slowly(request)


def test_a_draft_marked_invalid_is_never_accepted() -> None:
    drawn = torch.tensor([7, 7, 7])
    _, accepted = accept_chain(drawn, torch.tensor([1, 7, 7]), torch.tensor([0, 3]), 3)
    _, rejected = accept_chain(drawn, torch.tensor([1, -1, 7]), torch.tensor([0, 3]), 3)
    assert (accepted.item(), rejected.item()) == (3, 1)
