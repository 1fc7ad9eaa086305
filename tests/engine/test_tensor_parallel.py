"""Two ranks of a tensor-parallel target draft and verify as one, on a CPU with two cores, started by vLLM or by Ray.

Each method is compared with plain decoding on two ranks, because sums over ranks round otherwise than one rank's. The
ranks compare what they drafted and drew at every step.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.assistant import assistant_tree, make_assistant
from tests.engine.conftest import CHAIN, ROUND, Result, eagle3, moa, of_method, small, tree
from tests.engine.hybrid import hybrid_tree, make_hybrid
from tests.engine.latent import LLM as LATENT
from tests.engine.latent import make_target as make_latent
from tests.engine.latent_drafters import make_drafter as make_latent_drafter
from tests.engine.mamba_hybrid import make_granite, make_nemotron
from tests.engine.p_eagle import p_eagle_tree
from tests.engine.pard import pard_tree
from tests.engine.test_architectures import make
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_expert_modules import trees as modules_trees
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_hybrid import fewer
from tests.engine.test_latent_drafters import eagle3 as latent_eagle3
from tests.engine.test_lossless import differing
from tests.engine.test_mtp_tree import mimo  # noqa: F401 - a fixture
from tests.engine.test_mtp_tree import trees as mtp
from tests.engine.test_swift import swift
from tests.engine.windows import windowed
from tests.engine.workload import DFLASH, FOREIGN_BPE, FOREIGN_BYTES, TARGET
from vllm_specext.engine.verification.rank_check import VARIABLE

Engines = Callable[..., Result]

TWO_RANKS: dict[str, Any] = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
WITH_RAY: dict[str, Any] = {"distributed_executor_backend": "ray"}
ASKED = [ROUND[:8]]
"""Few, because two ranks on two cores wait for each other all the time."""

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a rank needs a core of its own"),
]


@pytest.fixture(scope="module")
def two_ranks(engines: Engines) -> Iterator[Engines]:
    def run(llm: dict[str, Any], **switches: Any) -> Result:
        return engines(TWO_RANKS | llm, rounds=ASKED, **switches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
        patch.setenv(VARIABLE, "1")
        yield run


@pytest.mark.parametrize(
    "llm",
    [
        tree(24, 4),
        small({"speculative_config": CHAIN}),
        eagle3(24, 4),
        moa(24, 4),
        swift(),
        foreign("slem", FOREIGN_BPE),
    ],
    ids=["griffin", "griffin-few-tokens", "eagle3", "moa", "swift", "slem"],
)
def test_two_ranks_give_the_tokens_of_plain_decoding(two_ranks: Engines, llm: dict[str, Any]) -> None:
    result = two_ranks(llm)
    assert differing(result, two_ranks({})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30


def test_two_ranks_draft_with_a_language_model(two_ranks: Engines) -> None:
    """The target itself, which drafts what is accepted."""
    result = two_ranks(of_method("draft-model-tree", TARGET, 24, 4))
    assert differing(result, two_ranks({})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60


def test_two_ranks_draft_what_is_predicted(engines: Engines, two_ranks: Engines) -> None:
    plain = two_ranks({})
    result = engines(TWO_RANKS | GIVEN, rounds=[predicting(ASKED[0], plain["outputs"])])
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30


def test_two_ranks_draft_the_same_blocks(two_ranks: Engines) -> None:
    """The drafter is made, so that hardly anything is accepted; the ranks compare what they draft."""
    result = two_ranks(of_method("dflash-tree", DFLASH, 24, 4))
    assert differing(result, two_ranks({})) == []
    assert result["sizes"]["24"] > 50


@pytest.mark.parametrize("made", [p_eagle_tree, pard_tree])
def test_two_ranks_draft_the_same_positions(
    two_ranks: Engines, tmp_path: Path, made: Callable[[Path], dict[str, Any]]
) -> None:
    result = two_ranks(made(tmp_path))
    assert differing(result, two_ranks({})) == []
    assert result["sizes"]["24"] > 40


def test_two_ranks_share_the_sinks_of_heads(two_ranks: Engines, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = {"model": str(windowed(tmp_path_factory.mktemp("target"), sinks=True))}
    result = two_ranks(tree(24, 4) | target)
    assert differing(result, two_ranks(target)) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30


def test_two_ranks_draft_blocks_with_a_markov_head(two_ranks: Engines, folder: Path) -> None:  # noqa: F811
    result = two_ranks(dspark(folder, 24, 4))
    assert differing(result, two_ranks({})) == []
    assert result["sizes"]["24"] > 50


def test_two_ranks_draft_with_the_targets_own_module(two_ranks: Engines, mimo: Path) -> None:  # noqa: F811
    result = two_ranks(mtp(mimo))
    assert differing(result, two_ranks({"model": str(mimo)})) == []
    assert result["sizes"]["24"] > 50


def test_two_ranks_share_the_keys_and_values_that_assistants_read(
    two_ranks: Engines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Scoring clusters alone, for which every rank has the whole output layer."""
    target, assistant = (tmp_path_factory.mktemp(name) for name in ("target", "assistant"))
    models = make("Gemma4", target), make_assistant(assistant, ordered=True)
    result = two_ranks(assistant_tree(models))
    assert differing(result, two_ranks({"model": str(models[0])})) == []
    assert result["sizes"]["24"] > 50


@pytest.mark.parametrize("drafter", ["module", "llama", "deepseek"])
def test_two_ranks_share_the_heads_over_a_latent_cache(
    two_ranks: Engines, tmp_path_factory: pytest.TempPathFactory, drafter: str
) -> None:
    """Each has the whole cache. The target's own module drafts, or an EAGLE-3 drafter of that kind."""
    target = tmp_path_factory.mktemp("latent")
    trees = modules_trees((target, make_latent(target, "deepseek"))) | LATENT
    if drafter != "module":
        trees = latent_eagle3((drafter, make_latent_drafter(tmp_path_factory.mktemp(drafter), drafter), target))
    plain = two_ranks(LATENT | {"model": str(target)})
    result = two_ranks(trees)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30
    assert differing(two_ranks(trees, sabotage="skip_compaction"), plain) != []


@pytest.mark.parametrize("make", [make_hybrid, make_granite], ids=["qwen", "granite"])
def test_two_ranks_share_the_heads_of_recurrent_layers(
    two_ranks: Engines, tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], tuple[Path, Path]]
) -> None:
    """The drafter knows all but these. Its own tokens are drafted as a chain, too, which vLLM's rule verifies. The
    Granite's heads are one group, which both ranks have."""
    models = make(tmp_path_factory.mktemp("hybrid"))
    plain = two_ranks({"model": str(models[0])})
    for llm in (hybrid_tree(models), foreign("slem", models[1]) | {"model": str(models[0])}):
        result = two_ranks(llm)
        assert differing(result, plain) == []
        assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30
    assert differing(two_ranks(hybrid_tree(models), sabotage="go_on_as_chains"), plain) != []


def test_two_ranks_share_groups_of_heads(engines: Engines, two_ranks: Engines, tmp_path: Path) -> None:
    """Of a Nemotron's recurrent layers, whose drafts are right predictions."""
    model = {"model": str(make_nemotron(tmp_path))}
    plain = two_ranks(model)
    llm, rounds = GIVEN | fewer(GIVEN, 24) | model, [predicting(ASKED[0], plain["outputs"])]
    result = engines(TWO_RANKS | llm, rounds=rounds)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 100
    assert differing(engines(TWO_RANKS | llm, rounds=rounds, sabotage="stay_behind"), plain) != []


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("llm", [tree(24, 4), swift()], ids=["griffin", "swift"])
def test_two_ranks_of_ray_give_the_tokens_of_plain_decoding(two_ranks: Engines, llm: dict[str, Any]) -> None:
    result = two_ranks(llm | WITH_RAY, ray=2)
    assert differing(result, two_ranks({})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30


def test_two_ranks_draw_the_same_drafts(two_ranks: Engines) -> None:
    """Otherwise they would verify different ones, and part ways."""
    result, plain = two_ranks(foreign("slrs", FOREIGN_BYTES)), two_ranks({})
    greedy = {index for index, request in enumerate(ASKED[0]) if request["sampling"]["temperature"] == 0}
    assert len(greedy) >= 3
    assert greedy.isdisjoint(differing(result, plain))
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30


def test_a_deliberate_fault_is_noticed_on_two_ranks(two_ranks: Engines) -> None:
    assert differing(two_ranks(tree(24, 4), sabotage="skip_compaction"), two_ranks({})) != []


def test_ranks_that_verify_different_trees_stop_with_a_sentence(two_ranks: Engines) -> None:
    with pytest.raises(AssertionError, match="tensor-parallel ranks disagree on what was drafted or drawn"):
        two_ranks(tree(24, 4), sabotage="draft_another_token_on_the_last_rank")
