"""Drafters that are quantised by their own checkpoint: small language models, which vLLM loads as it does targets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.platforms import current_platform

from tests.engine.conftest import Result, of_method
from tests.engine.pard import pard
from tests.engine.quantised import quantised
from tests.engine.test_foreign import foreign
from tests.engine.test_lossless import differing
from tests.engine.workload import FOREIGN_BPE, TARGET

Engines = Callable[..., Result]

extended = pytest.mark.extended
LOOKED_AT = {"sabotage": "what_a_checkpoint_quantises_is_quantised"}
KEPT = 0.9
"""Of the tokens that are accepted of a drafter's drafts, at least as many of the quantised one's."""

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="GPUs do not multiply float8 into float32")


def drafter_of(method: str, folder: Path) -> Path:
    """One that is not quantised, which may be made in ``folder``."""
    if method == "pard-tree":
        return pard(folder)
    return TARGET if method == "draft-model-tree" else FOREIGN_BPE


def drafting(method: str, drafter: Path) -> dict[str, Any]:
    return of_method(method, drafter, 24, 4) if method.endswith("-tree") else foreign(method, drafter)


@pytest.mark.parametrize(
    ("method", "scheme"),
    [
        pytest.param("draft-model-tree", "int8", marks=extended),
        pytest.param("draft-model-tree", "fp8", marks=extended),
        pytest.param("pard-tree", "int8", marks=extended),
        ("slem", "int8"),
        pytest.param("slem", "fp8", marks=extended),
        pytest.param("tli", "int8", marks=extended),
    ],
)
def test_tokens_are_those_of_plain_decoding_and_drafts_hardly_worse(
    engines: Engines, tmp_path: Path, method: str, scheme: str
) -> None:
    drafter, made = drafter_of(method, tmp_path / "whole"), tmp_path / scheme
    made.mkdir()
    result = engines(drafting(method, quantised(made, scheme, drafter)), **LOOKED_AT)
    assert differing(result, engines({})) == []
    accepted = "vllm:spec_decode_num_accepted_tokens"
    whole = engines(drafting(method, drafter))
    assert result["counters"][accepted] > KEPT * whole["counters"][accepted] > 50


@extended
def test_so_they_are_where_the_target_is_quantised_otherwise(engines: Engines, tmp_path: Path) -> None:
    """Each keeps its own scheme. SLEM's chains are verified by vLLM's attention, so that all answers are equal."""
    target, drafter = tmp_path / "target", tmp_path / "drafter"
    target.mkdir()
    drafter.mkdir()
    eight_bits = {"model": str(quantised(target, "int8"))}
    result = engines(eight_bits | foreign("slem", quantised(drafter, "fp8", FOREIGN_BPE)), **LOOKED_AT)
    assert differing(result, engines(eight_bits)) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60
