"""Text between bytes that are none."""

import pytest

from vllm_specext.methods.foreign_vocab.tokenizers.utf8 import runs


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", ([], 0)),
        (b"ab", ([("ab", 2)], 2)),
        (b"\xffab\xfe\xffc", ([("ab", 3), ("c", 6)], 6)),
        (b"ab\xff", ([("ab", 2)], 3)),
        (b"ab\xe2\x82", ([("ab", 2)], 2)),
        (b"\xffab\xe2\x82", ([("ab", 3)], 3)),
    ],
)
def test_runs_are_the_texts_that_are_there_and_where_they_end(data: bytes, found: tuple[object, int]) -> None:
    assert runs(data) == found
