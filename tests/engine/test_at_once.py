"""Trees and chains of drafters that draft all positions at once give the tokens of plain decoding on the real engine,
for every kind of request; the faults below must break that. What is drafted is compared in ``test_p_eagle.py`` and
``test_pard.py``.

There is no trained one. The bundled drafter for EAGLE-3 and a small model get a made mask, so that mostly the first
position of a draft is accepted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engine.conftest import TIGHT_FOR_TREES, Result, any_sizes, of_method
from tests.engine.float8 import needs_float8_caches
from tests.engine.p_eagle import p_eagle
from tests.engine.pard import pard
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.windows import windowed
from tests.engine.workload import DRAFTS

Engines = Callable[..., Result]

extended = pytest.mark.extended
NODES, TOP_K = 24, 4
BY_LOAD = [[1, 2, 59], [3, 4, 24], [5, 6, 4], [7, 8, 0]]


class Drafter(NamedTuple):
    method: str
    folder: Path
    keys: dict[str, Any]


MADE: dict[str, tuple[str, Callable[[Path], Path], dict[str, Any]]] = {
    "p-eagle": ("peagle-tree", p_eagle, {}),
    "pard": ("pard-tree", pard, {"draft_passes": 1}),
    "pard-in-three-passes": ("pard-tree", pard, {"draft_passes": 3}),
}


@pytest.fixture(scope="module", params=MADE)
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafter:
    method, make, keys = MADE[request.param]
    return Drafter(method, make(tmp_path_factory.mktemp("drafter")), keys)


def trees(drafter: Drafter, nodes: int = NODES, top_k: int = TOP_K, **own: Any) -> dict[str, Any]:
    return of_method(drafter.method, drafter.folder, nodes, top_k, **drafter.keys | own)


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


@pytest.mark.parametrize(
    ("nodes", "top_k", "llm", "own"),
    [
        (NODES, TOP_K, {}, {}),
        pytest.param(59, 10, TIGHT_FOR_TREES, {}, marks=extended),
        pytest.param(DRAFTS, 1, {}, {}, marks=extended),
        pytest.param(20, 4, {}, {"tree_depth": 2}, marks=extended),
        pytest.param(59, 10, {}, {"num_speculative_tokens_per_batch_size": BY_LOAD}, marks=extended),
    ],
    ids=["tree", "tight", "chain", "shallow", "by-load"],
)
@pytest.mark.parametrize(
    "drafter", [pytest.param(name, marks=extended) if name == "pard" else name for name in MADE], indirect=True
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, drafter: Drafter, nodes: int, top_k: int, llm: dict[str, Any], own: dict[str, Any]
) -> None:
    result = engines(trees(drafter, nodes, top_k, **own) | llm, keep_async=True)
    assert differing(result, plain) == []
    assert result["sizes"][str(nodes)] >= 5
    assert accepted(result) > 40


@extended
@pytest.mark.parametrize(("nodes", "top_k"), [(NODES, TOP_K), (DRAFTS, 1)], ids=["tree", "chain"])
def test_recorded_drafts_do(engines: Engines, plain: Result, drafter: Drafter, nodes: int, top_k: int) -> None:
    result = engines(trees(drafter, nodes, top_k), graphs=[2, 5, 8], keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 50


@extended
def test_drafts_of_one_position_do(engines: Engines, plain: Result, drafter: Drafter) -> None:
    """Without a row with a mask token."""
    result = engines(trees(drafter, 4, 4, tree_depth=1), keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 50


@extended
@pytest.mark.parametrize("graphs", [None, [2, 5, 8]], ids=["eager", "recorded"])
def test_any_sizes_do(engines: Engines, plain: Result, drafter: Drafter, graphs: list[int] | None) -> None:
    """And, in several passes, as many of them as may be."""
    result = engines(any_sizes(trees(drafter)), keep_async=True, sabotage="draw_sizes", graphs=graphs)
    assert differing(result, plain) == []
    assert len([size for size, count in result["sizes"].items() if count > 3]) >= 4
    assert accepted(result) > 50


@extended
@pytest.mark.parametrize("graphs", [None, [2, 5, 8]], ids=["eager", "recorded"])
def test_passes_that_do_not_hold_all_rows_do(
    engines: Engines, plain: Result, drafter: Drafter, graphs: list[int] | None
) -> None:
    """Eight requests have 128 rows or more with their accepted paths, and 56 or more without."""
    few = {"max_num_batched_tokens": 48}
    result = engines(trees(drafter) | few, keep_async=True, graphs=graphs)
    assert differing(result, plain) == []
    assert accepted(result) > 50


@extended
def test_a_target_with_windows_and_sinks_does(engines: Engines, drafter: Drafter, tmp_path: Path) -> None:
    target = {"model": str(windowed(tmp_path, sinks=True))}
    result = engines(trees(drafter) | target, keep_async=True)
    assert differing(result, engines(target)) == []
    assert result["sizes"][str(NODES)] > 60


@extended
@needs_float8_caches
def test_keys_and_values_in_float8_do(engines: Engines, drafter: Drafter) -> None:
    cache = {"kv_cache_dtype": "fp8"}
    result = engines(trees(drafter) | cache, keep_async=True)
    assert differing(result, engines(cache)) == []
    assert accepted(result) > 50


@extended
def test_compiled_trees_do(engines: Engines, drafter: Drafter) -> None:
    compiled = {"enforce_eager": False}
    result = engines(trees(drafter) | compiled)
    assert differing(result, engines(compiled)) == []
    assert accepted(result) > 50


@pytest.mark.parametrize("sabotage", ["skip_compaction", pytest.param("flip_an_ancestor_bit", marks=extended)])
@pytest.mark.parametrize(
    "drafter", [name if name == "p-eagle" else pytest.param(name, marks=extended) for name in MADE], indirect=True
)
def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result, drafter: Drafter, sabotage: str) -> None:
    assert is_noticed(engines, plain, trees(drafter), sabotage)
