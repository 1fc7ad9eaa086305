"""Quantised targets: drafts leave their tokens as they are, as far as rounding lets anything do so.

Where activations are rounded to eight bits, a difference in a last bit may become one of a hundredth. Chains are
verified by vLLM's own attention, and all answers are plain decoding's. Draft trees are verified by another, which adds
in another order. So an answer may differ, as it may without drafts if attention rounds otherwise.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.platforms import current_platform

from benchmarks.mimo import make_mimo
from tests.engine.conftest import CHAIN, Result, any_sizes, eagle3, moa, of_method, tree
from tests.engine.quantised import quantised
from tests.engine.test_foreign import foreign
from tests.engine.test_lossless import differing
from tests.engine.test_mtp_tree import trees as mtp
from tests.engine.test_swift import swift
from tests.engine.workload import DFLASH, FOREIGN_BPE, TARGET

Engines = Callable[..., Result]
Targets = Callable[[str], dict[str, Any]]
"""Arguments for a target of a scheme."""

extended = pytest.mark.extended
TREE, CHAINS = tree(24, 4), {"speculative_config": CHAIN}
LOOKED_AT = {"sabotage": "what_a_checkpoint_quantises_is_quantised"}
MOST = 4
"""Of 24 answers may differ with trees. With the last bit of attention at random 2 to 7 do, without drafts."""

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="GPUs do not multiply float8 into float32")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    made: dict[str, dict[str, Any]] = {}

    def of(scheme: str) -> dict[str, Any]:
        if scheme not in made:
            folder = quantised(tmp_path_factory.mktemp(scheme), scheme)
            made[scheme] = {"model": str(folder)} | ({"dtype": "bfloat16"} if scheme == "int4" else {})
        return made[scheme]

    return of


@extended
def test_chains_give_the_tokens_of_plain_decoding(engines: Engines, targets: Targets) -> None:
    for scheme in ("int8", "fp8"):
        result = engines(targets(scheme) | CHAINS, **LOOKED_AT)
        assert differing(result, engines(targets(scheme))) == []
        assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 150


@pytest.mark.parametrize(
    ("scheme", "llm", "least"),
    [
        ("int8", TREE, 200),
        pytest.param("fp8", TREE, 200, marks=extended),
        pytest.param("int4", TREE, 200, marks=extended),
        pytest.param("int8", any_sizes(TREE), 10, marks=extended),
        pytest.param("int8", eagle3(24, 4), 200, marks=extended),
        pytest.param("int8", moa(24, 4), 200, marks=extended),
        pytest.param("int8", of_method("dflash-tree", DFLASH, 24, 4), 150, marks=extended),
        pytest.param("int8", of_method("draft-model-tree", TARGET, 24, 4), 200, marks=extended),
        pytest.param("int8", swift(), 100, marks=extended),
        pytest.param("int8", foreign("slem", FOREIGN_BPE), 60, marks=extended),
        pytest.param("int8", foreign("tli", FOREIGN_BPE), 60, marks=extended),
    ],
    ids=[
        *("int8-griffin", "fp8-griffin", "int4-griffin", "any-sizes", "eagle3", "moa", "dflash", "draft-model"),
        *("swift", "slem", "tli"),
    ],
)
def test_nearly_all_answers_are_those_of_plain_decoding(
    engines: Engines, targets: Targets, scheme: str, llm: dict[str, Any], least: int
) -> None:
    result = engines(targets(scheme) | llm, **LOOKED_AT)
    assert len(differing(result, engines(targets(scheme)))) <= MOST
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > least


@extended
@pytest.mark.parametrize("llm", [TREE, eagle3(24, 4)], ids=["griffin", "eagle3"])
def test_those_of_an_output_layer_that_is_quantised_too_are(
    engines: Engines, tmp_path: Path, llm: dict[str, Any]
) -> None:
    target = {"model": str(quantised(tmp_path, "int8", head=True))}
    result = engines(target | llm, **LOOKED_AT)
    assert len(differing(result, engines(target))) <= MOST
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200


@extended
def test_those_of_a_quantised_mtp_module_are(engines: Engines, tmp_path: Path) -> None:
    whole, eight_bits = tmp_path / "whole", tmp_path / "int8"
    whole.mkdir()
    eight_bits.mkdir()
    target = quantised(eight_bits, "int8", make_mimo(whole))
    result = engines(mtp(target), **LOOKED_AT)
    assert len(differing(result, engines({"model": str(target)}))) <= MOST
    assert result["sizes"]["24"] > 60


@pytest.mark.parametrize("scheme", ["int8", pytest.param("fp8", marks=extended), pytest.param("int4", marks=extended)])
def test_a_deliberate_fault_in_a_tree_is_noticed(engines: Engines, targets: Targets, scheme: str) -> None:
    faulty = engines(targets(scheme) | TREE, sabotage="accept_the_best_node_of_every_tree")
    assert len(differing(faulty, engines(targets(scheme)))) > 4 * MOST


@extended
@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_attention_that_rounds_otherwise_changes_as_many(engines: Engines, targets: Targets, scheme: str) -> None:
    """Without drafts, and with a target that is not quantised it changes none."""
    otherwise = {"sabotage": "round_attention_otherwise"}
    assert len(differing(engines(targets(scheme), **otherwise), engines(targets(scheme)))) >= 2
    assert differing(engines({}, **otherwise), engines({})) == []
