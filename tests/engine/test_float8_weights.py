"""Drafters with weights in float8: the tokens of plain decoding, and nearly as many drafts accepted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.platforms import current_platform

from tests.engine.conftest import CHAIN, ROUND, Result, eagle3, moa, of_method, small, tree
from tests.engine.p_eagle import p_eagle_tree
from tests.engine.pard import pard_tree
from tests.engine.test_eagle_formats import eagle1
from tests.engine.test_foreign import foreign
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_moa import accepted
from tests.engine.workload import FOREIGN_BPE, FOREIGN_BYTES, TARGET

Engines = Callable[..., Result]

extended = pytest.mark.extended
LAYERS, HEAD = {"quantization": "fp8_per_channel"}, {"draft_lm_head_quantization": "fp8"}
TREE, CHAINS = tree(24, 4), {"speculative_config": CHAIN}
BESIDE = {"sabotage": "float8_beside_float32"}

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="GPUs do not multiply float8 into float32")


def with_keys(llm: dict[str, Any], *keys: dict[str, str]) -> dict[str, Any]:
    config = dict(llm["speculative_config"])
    for own in keys:
        config |= own
    return llm | {"speculative_config": config}


@pytest.mark.parametrize(
    ("llm", "keys"),
    [
        (TREE, (LAYERS, HEAD)),
        pytest.param(CHAINS, (LAYERS, HEAD), marks=extended),
        pytest.param(TREE, (LAYERS,), marks=extended),
        pytest.param(small(TREE), (LAYERS, HEAD), marks=extended),
        pytest.param(eagle3(24, 4), (LAYERS, HEAD), marks=extended),
        pytest.param(moa(24, 4), (HEAD,), marks=extended),
        pytest.param(of_method("draft-model-tree", TARGET, 24, 4), (LAYERS,), marks=extended),
        pytest.param(foreign("slem", FOREIGN_BPE), (LAYERS,), marks=extended),
        pytest.param(foreign("tli", FOREIGN_BPE), (LAYERS,), marks=extended),
    ],
    ids=[
        *("griffin", "griffin-chain", "griffin-layers", "griffin-of-few-tokens", "eagle3", "moa"),
        *("draft-model", "slem", "tli"),
    ],
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, llm: dict[str, Any], keys: tuple[dict[str, str], ...]
) -> None:
    result, whole = engines(with_keys(llm, *keys), **BESIDE), engines(llm)
    assert differing(result, engines({})) == []
    assert accepted(result) > 0.95 * accepted(whole)


@extended
def test_drafts_that_are_drawn_do_for_greedy_requests(engines: Engines) -> None:
    greedy = [one for one in ROUND if one["sampling"]["temperature"] == 0 and "logit_bias" not in one["sampling"]]
    assert len(greedy) > 5
    slrs = foreign("slrs", FOREIGN_BYTES)
    result, whole = engines(with_keys(slrs, LAYERS), rounds=[greedy], **BESIDE), engines(slrs, rounds=[greedy])
    assert differing(result, engines({}, rounds=[greedy])) == []
    assert accepted(result) > 0.95 * accepted(whole)


@extended
def test_recorded_drafts_do(engines: Engines) -> None:
    result = engines(with_keys(TREE, LAYERS, HEAD), graphs=[2, 5, 8], **BESIDE)
    assert differing(result, engines({})) == []
    assert accepted(result) > 0.95 * accepted(engines(TREE))


@extended
def test_those_of_eagle_1_do(engines: Engines, tmp_path: Path) -> None:
    """A made drafter, of which little is accepted."""
    eagle = of_method("eagle-tree", eagle1(tmp_path / "drafter"), 24, 4)
    result = engines(with_keys(eagle, LAYERS, HEAD), **BESIDE)
    assert differing(result, engines({})) == []
    assert result["sizes"]["24"] > 60


@extended
def test_those_of_p_eagle_do(engines: Engines, tmp_path: Path) -> None:
    whole = p_eagle_tree(tmp_path)
    result = engines(with_keys(whole, LAYERS, HEAD), **BESIDE)
    assert differing(result, engines({})) == []
    assert accepted(result) > 0.9 * accepted(engines(whole))


@extended
def test_those_of_pard_do(engines: Engines, tmp_path: Path) -> None:
    whole = pard_tree(tmp_path)
    result = engines(with_keys(whole, LAYERS), **BESIDE)
    assert differing(result, engines({})) == []
    assert accepted(result) > 0.9 * accepted(engines(whole))


@pytest.mark.parametrize(
    ("llm", "sabotage"),
    [
        (TREE, "float8_best_nodes"),
        pytest.param(CHAINS, "float8_every_draft", marks=extended),
    ],
    ids=["tree", "chain"],
)
def test_a_deliberate_fault_is_noticed(engines: Engines, llm: dict[str, Any], sabotage: str) -> None:
    assert is_noticed(engines, engines({}), with_keys(llm, LAYERS, HEAD), sabotage)
