"""Trees of EAGLE-3 drafters for a target with multi-head latent attention (MLA) give the tokens of plain decoding on
the real engine: drafters with Llama's attention, whose keys and values lie beside latent vectors, and with latent
attention of their own.

What is drafted is compared with plain torch and transformers' parts.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Engines, Result, of_method
from tests.engine.latent import LLM, make_target
from tests.engine.latent_drafters import PlainDrafter, make_drafter
from tests.engine.test_eagle_drafting import wrong_features
from tests.engine.test_expert_modules import LEVELS, NODES, TOP_K
from tests.engine.test_latent import GRAPHS, TIGHT
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_tree_drafting import Replay, accepted, drafts, record

Pair = tuple[str, Path, Path]

extended = pytest.mark.extended


@pytest.fixture(scope="module")
def target(engines: Engines) -> Path:
    return engines.made("deepseek", lambda folder: make_target(folder, "deepseek"))


@pytest.fixture(scope="module", params=[pytest.param("llama", marks=extended), "deepseek"])
def pair(request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return request.param, make_drafter(tmp_path_factory.mktemp(request.param), request.param), target


def eagle3(pair: Pair, nodes: int = NODES, top_k: int = TOP_K, **own: Any) -> dict[str, Any]:
    _, drafter, target = pair
    return of_method("eagle3-tree", drafter, nodes, top_k, tree_depth=LEVELS, **own) | LLM | {"model": str(target)}


@pytest.fixture(scope="module")
def plain(engines: Engines, target: Path) -> Result:
    return engines(LLM | {"model": str(target)})


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="sync", marks=extended),
        pytest.param({"keep_async": True}, id="async", marks=extended),
        pytest.param({"keep_async": True, "graphs": GRAPHS}, id="padded"),
    ],
)
def test_trees_give_the_tokens_of_plain_decoding(
    engines: Engines, pair: Pair, plain: Result, how: dict[str, Any]
) -> None:
    result = engines(eagle3(pair), **how)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert result["sizes"][str(NODES)] > 60
    assert set(result.get("replays", [])) == set(how.get("graphs", []))


@extended
def test_chains_do(engines: Engines, pair: Pair, plain: Result) -> None:
    result = engines(eagle3(pair, LEVELS, 1), keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 100


@extended
def test_where_memory_is_tight(engines: Engines, pair: Pair, plain: Result) -> None:
    result = engines(eagle3(pair, 8) | TIGHT, keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:num_preemptions"] > 0


@extended
@pytest.mark.parametrize("fault", ["skip_compaction", "accept_the_best_node_of_every_tree"])
def test_a_deliberate_fault_is_noticed(engines: Engines, pair: Pair, plain: Result, fault: str) -> None:
    assert is_noticed(engines, plain, eagle3(pair), fault)


def test_every_level_of_every_draft_is_that_of_plain_torch(engines: Engines, pair: Pair, tmp_path: Path) -> None:
    """And the features of the first are the target's."""
    kind, drafter, target = pair
    recorded = record(engines, tmp_path / "passes.pt", eagle3(pair))
    plain = PlainDrafter(drafter, kind, target)
    replay = Replay(plain, plain.logits)
    made = drafts(recorded[1])
    assert len(made) >= 5
    for first, levels in made:
        replay.draft(accepted(first, levels), levels)
    assert replay.largest < 1e-4
    rows, wrong = wrong_features(plain.features, *recorded)
    assert rows > len(recorded[0]) - 10
    assert wrong == 0
