"""Which rows a benchmark has, and which configurations are refused before anything is loaded."""

import json

import pytest

from vllm_specext.bench import configurations
from vllm_specext.bench.configurations import (
    EAGLE3,
    NGRAM,
    VLLM_TLI,
    Configuration,
    after_stock,
    check_nodes,
    chosen,
)
from vllm_specext.bench.results import described
from vllm_specext.bench.vllms_own import SUFFIX, left_out
from vllm_specext.bench.workload import Workload
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import (
    CONFIGURATIONS,
    EAGLE3_TREE,
    GRIFFIN_CHAIN,
    GRIFFIN_TREE,
    SLEM,
    SLRS,
    SWIFT,
    TLI,
)
from vllm_specext.measure.plain import PLAIN, STOCK_ENVIRONMENT
from vllm_specext.options.check import parse
from vllm_specext.registry import METHODS
from vllm_specext.speculative_config import check


@pytest.fixture(autouse=True)
def no_suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether arctic-inference is installed is no matter of these tests."""
    monkeypatch.setattr(configurations, "has_suffix", lambda: False)


def names(found: list[Configuration]) -> list[str]:
    return [each.name for each in found]


def test_the_demonstrations_rows_follow_plain_and_vllms_own_when_nothing_is_given() -> None:
    demonstrations = [name for name, _ in CONFIGURATIONS if name != "eagle3-tree"]
    stock = [PLAIN, "ngram", "eagle3", "eagle3-tree"]
    assert names(chosen(None, [], None, False)) == [*stock, "vllm-tli", "dflash", *demonstrations]
    quick = names(chosen(None, [], None, True))
    assert quick[:4] == stock
    assert {"griffin-chain", "griffin-tree", "moa-tree", "swift", "slem"} == set(quick[4:])


def test_the_bundled_eagle_3_drafter_is_there_for_the_bundled_target_unless_another_is_given() -> None:
    mine = f"mine={json.dumps(GRIFFIN_CHAIN)}"
    assert names(chosen(None, [mine], None, False)) == [PLAIN, "ngram", "eagle3", "eagle3-tree", "mine"]
    assert names(chosen(None, [mine], "drafter", False)) == [PLAIN, "ngram", "eagle", "eagle-tree", "mine"]
    for number, bundled in ((2, EAGLE3), (3, EAGLE3_TREE)):
        own = bundled | {"num_speculative_tokens": 2}
        found = chosen(None, [f"{names(chosen(None, [], None, True))[number]}={json.dumps(own)}"], None, False)
        assert len(found) == 4
        assert found[number].speculative == own


def test_a_chain_of_vllms_own_and_a_tree_of_ours_have_the_same_drafter() -> None:
    for found in (chosen(None, [], None, True), chosen("model", [], "org/EAGLE3-Llama", False)):
        chain, tree = found[2:4]
        assert chain.speculative is not None
        assert tree.speculative is not None
        assert (chain.speculative["method"], tree.speculative["method"]) == ("eagle3", "eagle3-tree")
        assert chain.speculative["model"] == tree.speculative["model"]
        assert (chain.grows_trees, tree.grows_trees) == (False, True)
        check(tree.speculative)


def test_vllms_own_tli_is_compared_with_ours_alike() -> None:
    rows = {each.name: each.speculative for each in chosen(None, [], None, False)}
    assert rows["vllm-tli"] == VLLM_TLI
    assert rows["tli"] == TLI
    assert [VLLM_TLI[key] for key in ("model", "num_speculative_tokens")] == [
        TLI["model"],
        TLI["num_speculative_tokens"],
    ]


def test_plain_and_ngram_are_there_whatever_is_given() -> None:
    found = chosen("model", [f"mine={json.dumps(GRIFFIN_CHAIN)}"], "drafter", False)
    assert names(found) == [PLAIN, "ngram", "eagle", "eagle-tree", "mine"]
    assert [each.speculative for each in found[:2]] == [None, NGRAM]
    assert found[2].speculative == {"method": "eagle", "model": "drafter", "num_speculative_tokens": 4}
    assert found[3].speculative == {"method": "eagle-tree", "model": "drafter"}
    assert names(chosen("model", [], None, False)) == [PLAIN, "ngram"]


def test_suffix_decoding_is_a_row_where_vllm_can_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not installed: pip install arctic-inference" in left_out({"plain"}, False, False)["suffix"]
    monkeypatch.setattr(configurations, "has_suffix", lambda: True)
    found = chosen("model", [], None, False)
    assert names(found) == [PLAIN, "ngram", "suffix"]
    assert found[2].speculative == SUFFIX
    assert left_out(set(names(found)), False, False) == {}
    assert "suffix" not in names(chosen("model", [], None, True))
    assert left_out({"plain"}, False, True) == {}


def test_a_small_model_drafts_vllms_chain_and_our_tree() -> None:
    found = chosen("model", [], None, False, "org/small")
    assert names(found) == [PLAIN, "ngram", "draft-model", "draft-model-tree"]
    chain, tree = (each.speculative or {} for each in found[2:])
    assert chain == {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 4}
    assert tree == {"method": "draft-model-tree", "model": "org/small"}
    check(tree)
    assert "draft-model" not in left_out(set(names(found)), True, False)
    assert "name one with --draft-model" in left_out({"plain"}, True, False)["draft-model"]
    with pytest.raises(ConfigurationError, match="'draft-model', but there is a row of that name already"):
        chosen("model", [f"draft-model={json.dumps(NGRAM)}"], None, False, "org/small")


@pytest.mark.parametrize("name", ["eagle", "eagle-tree"])
def test_a_drafter_of_eagle_leaves_no_row_of_its_names_to_be_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}', but there is a row of that name already"):
        chosen(None, [f"{name}={json.dumps(NGRAM)}"], "drafter", False)
    assert name in names(chosen(None, [f"{name}={json.dumps(NGRAM)}"], None, False))


def test_the_users_ngram_replaces_ours() -> None:
    own = {"method": "ngram", "num_speculative_tokens": 7}
    found = chosen("model", [f"ngram={json.dumps(own)}"], None, False)
    assert names(found) == [PLAIN, "ngram"]
    assert found[1].speculative == own


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["tree"], "must be a name"),
        (["tree={"], "must be a name"),
        (['={"method": "ngram"}'], "must be a name"),
        (["tree=[]"], "must be a name"),
        (['tree={"model": "x"}'], "with a method"),
        (['a/b={"method": "ngram"}'], "no slash"),
        (['plain={"method": "ngram"}'], "already"),
        (['plain-stock={"method": "ngram"}'], "already"),
        (['a={"method": "ngram"}', 'a={"method": "ngram"}'], "already"),
        (['a={"method": "griffin", "model": "x", "tree_deepth": 3}'], "'tree_deepth' is unknown"),
        (['a={"method": "griffin"}'], "'model' is missing"),
    ],
)
def test_bad_configurations_are_refused_in_one_sentence(given: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        chosen("model", given, None, False)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_vllm_as_it_is_comes_first_and_knows_its_process() -> None:
    found = after_stock(chosen(None, [], None, True))
    assert names(found)[:3] == ["plain-stock", PLAIN, "ngram"]
    assert (found[0].speculative, found[0].environment) == (None, STOCK_ENVIRONMENT)
    assert not any(each.environment for each in found[1:])
    work = Workload(None, found, [], 8, 1)
    assert (work.baseline.name, work.plain.name) == ("plain-stock", PLAIN)
    assert [names(work.others)[0], names(work.drafting)[0]] == [PLAIN, "ngram"]
    on_gpu = Workload(None, found[1:], [], 8, 1)
    assert on_gpu.baseline is on_gpu.plain
    assert names(on_gpu.others) == names(on_gpu.drafting) == names(work.drafting)


def test_only_trees_have_a_number_of_nodes_to_choose() -> None:
    trees = {"tree": GRIFFIN_TREE, "swift": SWIFT, "chain": GRIFFIN_CHAIN, "slem": SLEM, "ngram": NGRAM, "plain": None}
    assert [name for name, own in trees.items() if Configuration(name, own).grows_trees] == ["tree"]


def test_who_promises_the_tokens_of_plain_decoding_where_they_are_drawn() -> None:
    drawn = TLI | {"draft_sample_method": "probabilistic"}
    rows = {"tree": GRIFFIN_TREE, "swift": SWIFT, "slem": SLEM, "tli": TLI, "plain": None}
    others = {"drawn": drawn, "slrs": SLRS, "ngram": NGRAM, "eagle3": EAGLE3, "plain-stock": None}
    assert all(Configuration(name, own).keeps_samples for name, own in rows.items())
    assert not any(Configuration(name, own).keeps_samples for name, own in others.items())


def test_a_chosen_number_of_nodes_holds_under_any_load_and_is_valid() -> None:
    found = Configuration("tree", GRIFFIN_TREE).with_nodes(8).speculative
    assert found is not None
    assert found["num_speculative_tokens"] == 8
    ((first, last, nodes),) = found["num_speculative_tokens_per_batch_size"]
    assert (first, nodes) == (1, 8)
    assert last > 4096
    parse(METHODS["griffin"].options, found)
    assert found["tree_depth"] == GRIFFIN_TREE["tree_depth"]


def test_no_nodes_at_all_leave_the_trees_shape_alone() -> None:
    found = Configuration("tree", GRIFFIN_TREE).with_nodes(0).speculative
    assert found is not None
    assert [nodes for _, _, nodes in found["num_speculative_tokens_per_batch_size"]] == [0]
    parse(METHODS["griffin"].options, found)
    row = described(Configuration("tree", GRIFFIN_TREE), "V2", nodes=0)
    assert row["num_speculative_tokens"] == 0


@pytest.mark.parametrize(
    ("nodes", "said"),
    [([0], "1 to 256"), ([-1, 8], "is -1"), ([8, 1000], "is 1000"), ([8], "no configuration")],
)
def test_nodes_that_cannot_be_are_refused(nodes: list[int], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_nodes([Configuration(PLAIN), Configuration("chain", GRIFFIN_CHAIN)], nodes)
    check_nodes([Configuration("tree", GRIFFIN_TREE)], [0, 8, 24])


def test_a_configuration_has_the_sizes_that_its_trees_can_have() -> None:
    narrow, wide = Configuration("narrow", GRIFFIN_TREE), Configuration("wide", GRIFFIN_TREE | {"tree_top_k": 10})
    assert narrow.most_nodes == 52
    assert narrow.sizes([0, 8, 52, 53]) == [0, 8, 52]
    assert wide.sizes([0, 8, 52, 53]) == [0, 8, 52, 53]
    assert narrow.sizes([0, 53]) == []
    assert Configuration("chain", GRIFFIN_CHAIN).sizes([0, 8]) == []
    check_nodes([narrow, wide], [0, 53])
    with pytest.raises(ConfigurationError, match=r"--nodes is 53, but .* at most 52 nodes"):
        check_nodes([narrow, Configuration(PLAIN)], [0, 8, 53])
