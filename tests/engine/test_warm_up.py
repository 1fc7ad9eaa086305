"""vLLM's warm-up on a GPU serves more requests with the most drafted tokens than any schedule has. Engines get through
it, and answer as before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import CHAIN, ROUND, Result, eagle3, moa, of_method, tree
from tests.engine.hybrid import hybrid_tree, make_hybrid
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN
from tests.engine.test_lossless import differing
from tests.engine.workload import DFLASH, FOREIGN_BYTES

Engines = Callable[..., Result]

FEW = ROUND[:8]
ROOM = {"max_num_seqs": 32, "max_num_batched_tokens": 1024}
"""For more rows than the schedules below have."""
METHODS = {
    "griffin": tree(24, 4),
    "griffin-chain": {"speculative_config": CHAIN},
    "eagle3-tree": eagle3(24, 4),
    "dflash-tree": of_method("dflash-tree", DFLASH, 24, 4, tree_depth=4),
    "moa": moa(24, 4),
    "given": GIVEN,
    "slem": foreign("slem", FOREIGN_BYTES),
}
BY_DEFAULT = ("griffin",)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.extended) for name in METHODS]
)
def test_an_engine_that_has_warmed_up_gives_the_tokens_of_plain_decoding(engines: Engines, method: str) -> None:
    plain = engines({}, rounds=[FEW])
    result = engines(METHODS[method] | ROOM, rounds=[FEW], warm_up=True)
    assert differing(result, plain) == []


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_hybrid(tmp_path_factory.mktemp("hybrid"))


@pytest.mark.parametrize("nodes", [24, pytest.param(4, marks=pytest.mark.extended)], ids=["tree", "chain"])
def test_so_does_one_whose_recurrent_layers_keep_few_rows(
    engines: Engines, models: tuple[Path, Path], nodes: int
) -> None:
    few = {"num_speculative_tokens_per_batch_size": [[1, 2, nodes], [3, 32, 1]]}
    without_prefixes: dict[str, Any] = {"model": str(models[0]), "enable_prefix_caching": False}
    plain = engines(without_prefixes, rounds=[FEW])
    result = engines(hybrid_tree(models, nodes=nodes, **few) | without_prefixes | ROOM, rounds=[FEW], warm_up=True)
    assert differing(result, plain) == []
