"""Attention to prefixes by another kernel than to nodes, as with FlashAttention 3: the tokens of plain decoding."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import TIGHT_FOR_TREES, Result, moa, tree
from tests.engine.test_lossless import differing, is_noticed
from vllm_specext.measure.bundled import SWIFT

Engines = Callable[..., Result]

extended = pytest.mark.extended
TREE = tree(24, 4)


@pytest.mark.parametrize(
    "llm",
    [
        TREE,
        pytest.param(TREE | TIGHT_FOR_TREES, marks=extended),
        pytest.param(tree(24, 4, [[1, 2, 24], [3, 4, 9], [5, 8, 4]]), marks=extended),
        pytest.param(moa(24, 4), marks=extended),
        pytest.param({"speculative_config": SWIFT}, marks=extended),  # the target's layers draft as well
    ],
    ids=["griffin", "griffin-tight", "griffin-by-load", "moa", "swift"],
)
def test_trees_give_the_tokens_of_plain_decoding(engines: Engines, llm: dict[str, Any]) -> None:
    result = engines(llm, sabotage="prefixes_apart", keep_async=True, every_pass=True)
    assert differing(result, engines({})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 150


def test_forgetting_the_sums_of_prefixes_is_noticed(engines: Engines) -> None:
    assert is_noticed(engines, engines({}), TREE, "forget_what_prefixes_add_up_to")
