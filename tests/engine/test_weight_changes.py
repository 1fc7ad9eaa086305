"""Weights that change while an engine serves, as a trainer changes them (RLHF): drafts verified by the new target give
the tokens of plain decoding with it, and what was made of older weights is made anew.

Between two rounds of the same requests the target or the drafter gets other weights. The second round is compared with
engines that were started with these.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file, save_file

from tests.engine.conftest import ROUND, Engines, Result, cut, eagle3, moa, of_method, small, tree
from tests.engine.expert_targets import make_target as make_expert_target
from tests.engine.latent import FAMILIES, LAYERS, LLM, make_target
from tests.engine.pard import pard
from tests.engine.test_eagle_formats import eagle1
from tests.engine.test_expert_modules import trees
from tests.engine.test_foreign import foreign
from tests.engine.test_latent import latent_trees
from tests.engine.test_lossless import differing
from tests.engine.weights import BACKEND, changed
from tests.engine.workload import DFLASH, FOREIGN_BPE, TARGET

ASKED = cut(ROUND[:8], 48)
FROM_A_TRAINER: dict[str, Any] = {"weight_transfer_config": {"backend": BACKEND}}
extended = pytest.mark.extended


class Models(NamedTuple):
    target: Path
    later: Path
    """The target after training."""
    small: Path
    """A language model to draft with."""
    eagle: Path
    pard: Path


@pytest.fixture(scope="module")
def models(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """With output layers of their own: vLLM does not load those anew on a CPU that are also the embedding."""
    apart = {"tie_word_embeddings": False}
    target = engines.made("untied", lambda folder: changed(TARGET, folder, 0, **apart))
    return Models(
        target,
        engines.made("untied-later", lambda folder: changed(TARGET, folder, 0.05, **apart)),
        engines.made("untied-small", lambda folder: changed(TARGET, folder, 0.02, seed=2, **apart)),
        eagle1(tmp_path_factory.mktemp("eagle") / "drafter"),
        engines.made("untied-pard", lambda folder: changed(pard(folder / "tied"), folder, 0, **apart)),
    )


@pytest.fixture(scope="module")
def plain(engines: Engines, models: Models) -> Result:
    return engines({"model": str(models.target)}, rounds=[ASKED, ASKED])


@pytest.fixture(scope="module")
def plain_later(engines: Engines, models: Models) -> Result:
    return engines({"model": str(models.later)}, rounds=[ASKED, ASKED])


def ways(models: Models) -> dict[str, dict[str, Any]]:
    return {
        "tree": tree(24, 4),
        "chain": tree(4, 1),
        "few tokens": small(tree(24, 4)),
        "moa": moa(12, 3),
        "eagle3": eagle3(24, 4),
        "dflash": of_method("dflash-tree", DFLASH, 15, 3),
        "language model": of_method("draft-model-tree", models.small, 12, 3),
        "eagle": of_method("eagle-tree", models.eagle, 24, 4),
        "pard": of_method("pard-tree", models.pard, 24, 4),
        "slem": foreign("slem", FOREIGN_BPE),
        "tli": foreign("tli", FOREIGN_BPE),
        "swift": {"speculative_config": {"method": "swift", "num_speculative_tokens": 6, "adaptive_drafts": False}},
    }


def rate(result: Result, place: int = -1) -> float:
    """Accepted tokens a draft in a round."""
    drafts, accepted = result["accepted"][place]
    assert drafts > 50
    return accepted / drafts


def second(result: Result) -> Result:
    return {"outputs": result["outputs"][len(ASKED) :]}


@pytest.mark.parametrize("how", ["reload", pytest.param("trainer", marks=extended)])
@pytest.mark.parametrize(
    "way", ["few tokens", *(pytest.param(way, marks=extended) for way in ("tree", "chain", "moa", "eagle3", "swift"))]
)
def test_another_target_gives_the_tokens_of_plain_decoding_with_it(
    engines: Engines, models: Models, plain: Result, plain_later: Result, way: str, how: str
) -> None:
    llm = FROM_A_TRAINER | {"model": str(models.target)} | ways(models)[way]
    change = {"before": 1, "of": "target", "how": how, "model": str(models.later)}
    result = engines(llm, rounds=[ASKED, ASKED], changes=[change])
    assert differing({"outputs": result["outputs"][: len(ASKED)]}, {"outputs": plain["outputs"][: len(ASKED)]}) == []
    assert differing(second(result), second(plain_later)) == []
    assert differing(second(plain_later), second(plain))
    fresh = engines(ways(models)[way] | {"model": str(models.later)}, rounds=[ASKED, ASKED])
    assert rate(result) == pytest.approx(rate(fresh), rel=0.1)


def test_passes_recorded_with_older_weights_are_noticed(engines: Engines, models: Models, plain_later: Result) -> None:
    change = {"before": 1, "of": "target", "how": "reload", "model": str(models.later)}
    llm = tree(24, 4) | {"model": str(models.target)}
    faulty = engines(llm, rounds=[ASKED, ASKED], changes=[change], sabotage="keep_what_was_recorded")
    assert differing(second(faulty), second(plain_later))


DRAFTERS = {"tree": 1, "chain": 1, "few tokens": 1000, "moa": 1, "eagle3": 1, "language model": 1000}
DRAFTERS |= {"eagle": 1, "pard": 1, "slem": 1000, "tli": 1}


@pytest.mark.parametrize(
    ("way", "at_once"),
    [pytest.param(way, tensors, marks=[extended] if way != "tree" else []) for way, tensors in DRAFTERS.items()],
)
def test_another_drafter_drafts_what_it_would_have_from_the_start(
    engines: Engines, models: Models, plain: Result, way: str, at_once: int
) -> None:
    llm = {"model": str(models.target)} | ways(models)[way]
    worse = worse_drafter(engines, way, llm)
    change = {"before": 1, "of": "drafter", "how": "trainer", "model": str(worse), "at_once": at_once}
    result = engines(FROM_A_TRAINER | llm, rounds=[ASKED, ASKED], changes=[change])
    assert differing(result, plain) == []
    drafting = llm["speculative_config"] | {"model": str(worse)}
    fresh = engines(llm | {"speculative_config": drafting}, rounds=[ASKED, ASKED])
    assert rate(result) < 0.6 * rate(result, 0)
    assert rate(result) == pytest.approx(rate(fresh), rel=0.1, abs=0.02)


@extended
@pytest.mark.parametrize("at_once", [1, 1000])
def test_another_module_of_the_target_does(engines: Engines, tmp_path: Path, at_once: int) -> None:
    """Released files have the target's embedding and output layer once more among the module's tensors."""
    target = engines.made("deepseek", lambda folder: make_target(folder, "deepseek"))
    llm = latent_trees((target, FAMILIES["deepseek"][1]))
    tensors, own = load_file(target / "model.safetensors"), f"model.layers.{LAYERS}."
    module = {name: tensor for name, tensor in tensors.items() if name.startswith(own)}
    module[f"{own}embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    module[f"{own}shared_head.head.weight"] = tensors["lm_head.weight"]
    save_file({name: tensor.flip(0).contiguous() for name, tensor in module.items()}, tmp_path / "model.safetensors")
    change = {"before": 1, "of": "drafter", "how": "trainer", "model": str(tmp_path), "at_once": at_once}
    result = engines(FROM_A_TRAINER | llm, rounds=[ASKED, ASKED], changes=[change])
    assert differing(result, engines(LLM | {"model": str(target)}, rounds=[ASKED, ASKED])) == []
    assert rate(result) < 0.3 * rate(result, 0)


@extended
def test_the_whole_targets_file_may_be_given_to_its_module(engines: Engines, tmp_path: Path) -> None:
    target = tmp_path / "glm"
    target.mkdir()
    llm = trees((target, make_expert_target(target, "glm")))
    change = {"before": 1, "of": "drafter", "how": "trainer", "model": str(target)}
    result = engines(FROM_A_TRAINER | llm, rounds=[ASKED, ASKED], changes=[change])
    assert differing(result, engines({"model": str(target)}, rounds=[ASKED, ASKED])) == []
    assert result["sizes"]


def worse_drafter(engines: Engines, way: str, llm: dict[str, Any]) -> Path:
    source = Path(llm["speculative_config"]["model"])
    noise = 3.0 if way == "eagle" else 0.4  # little of what it drafts is accepted to begin with
    return engines.made(f"worse {way}".replace(" ", "-"), lambda folder: changed(source, folder, noise, seed=3))


@pytest.mark.parametrize("sabotage", [None, "load_what_is_shared"])
def test_a_drafters_copy_of_an_older_embedding_is_left_out(
    engines: Engines, models: Models, plain: Result, sabotage: str | None
) -> None:
    llm = {"model": str(models.target)} | eagle3(24, 4)
    worse = worse_drafter(engines, "eagle3", llm)
    drafter = engines.made("older-embedding", lambda folder: with_embedding(worse, folder))
    change = {"before": 1, "of": "drafter", "how": "trainer", "model": str(drafter)}
    result = engines(FROM_A_TRAINER | llm, rounds=[ASKED, ASKED], changes=[change], sabotage=sabotage)
    assert bool(differing(result, plain)) == bool(sabotage)


def with_embedding(drafter: Path, folder: Path) -> None:
    changed(drafter, folder, 0)
    tensors = load_file(folder / "model.safetensors")
    embedding = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    save_file(tensors | {"embed_tokens.weight": embedding.flip(0).contiguous()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    "way",
    ["tree", *(pytest.param(way, marks=extended) for way in ("moa", "dflash", "eagle3", "language model"))],
)
def test_a_sleep_keeps_the_drafter_and_what_verification_has(
    engines: Engines, models: Models, plain: Result, way: str
) -> None:
    llm = {"model": str(models.target)} | ways(models)[way]
    change = {"before": 1, "of": "target", "how": "sleep", "model": str(models.target)}
    result = engines(llm, rounds=[ASKED, ASKED], changes=[change])
    assert differing(result, plain) == []
    assert rate(result) == pytest.approx(rate(result, 0), rel=0.1)


@pytest.mark.parametrize("sabotage", ["keep_nothing", pytest.param("keep_the_drafter_alone", marks=extended)])
def test_what_a_sleep_does_not_keep_is_noticed(engines: Engines, models: Models, sabotage: str) -> None:
    llm = {"model": str(models.target)} | tree(24, 4)
    change = {"before": 1, "of": "target", "how": "sleep", "model": str(models.target), "loses": True}
    faulty = engines(llm, rounds=[ASKED, ASKED], changes=[change], sabotage=sabotage)
    assert (rate(faulty) < 0.1 * rate(faulty, 0)) == (sabotage == "keep_nothing")
