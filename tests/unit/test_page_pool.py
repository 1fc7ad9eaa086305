"""Pages of a drafter's own cache."""

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_specext.engine.standalone.page_pool import NULL_PAGE, PagePool


def test_a_request_gets_the_pages_that_it_lacks() -> None:
    pool = PagePool(pages=5, page_size=16)
    first = pool.take(7, 17)
    assert first is not None
    assert len(first) == 2
    assert pool.take(7, 32) == []
    assert pool.take(7, 33) not in (None, [])
    assert pool.count(7) == 3


def test_those_that_wait_lose_theirs_only_as_far_as_needed() -> None:
    pool = PagePool(pages=5, page_size=16)
    for slot in (0, 1):
        assert pool.take(slot, 32) is not None
    assert pool.take(2, 16) is None
    assert pool.take(2, 16, waiting=[2, 1, 0]) is not None
    assert (pool.count(0), pool.count(1), pool.count(2)) == (2, 0, 1)


def test_nobody_else_loses_pages_once_as_many_are_free_as_are_needed() -> None:
    pool = PagePool(pages=5, page_size=16)
    for slot in (0, 1):
        assert pool.take(slot, 32) is not None
    new = pool.take(2, 32, waiting=[1, 0])
    assert new is not None
    assert len(new) == 2
    assert (pool.count(0), pool.count(1)) == (2, 0)


def test_a_request_that_gets_nothing_keeps_what_it_has() -> None:
    pool = PagePool(pages=3, page_size=16)
    assert pool.take(0, 16) is not None
    assert pool.take(0, 64) is None
    assert pool.count(0) == 1
    assert pool.take(1, 16) is not None


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100)), max_size=30))
def test_no_page_has_two_owners_and_none_is_lost(steps: list[tuple[int, int]]) -> None:
    pool = PagePool(pages=8, page_size=16)
    owned: dict[int, list[int]] = {}
    for slot, tokens in steps:
        if tokens == 0:
            pool.release(slot)
        elif new := pool.take(slot, tokens, waiting=[0, 1]):
            owned.setdefault(slot, []).extend(new)
        owned = {own: pages for own, pages in owned.items() if pool.count(own)}
        given_out = [page for pages in owned.values() for page in pages]
        assert len(set(given_out)) == len(given_out) <= 7
        assert NULL_PAGE not in given_out
        assert {own: len(pages) for own, pages in owned.items()} == {own: pool.count(own) for own in owned}
    for slot in range(5):
        pool.release(slot)
    assert pool.take(9, 7 * 16) is not None
