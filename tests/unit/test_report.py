"""The start-up log's lines, from configurations that vLLM has built and from a worker that has laid out its caches."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_declaration import configuration
from vllm_specext.declaration import Keeps
from vllm_specext.engine import report
from vllm_specext.engine.report import configured, graphs, log_start, memory_line
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, GRIFFIN_TREE, SLEM, SLRS, SWIFT, as_long_as_it_pays


def lines(speculative: dict[str, Any]) -> dict[str, str]:
    return dict(configured(configuration(speculative)))


def test_a_tree_is_told_with_its_schedule_and_its_drafter() -> None:
    told = lines(GRIFFIN_TREE)
    assert told["Speculative method"] == "griffin"
    assert told["Drafter"] == GRIFFIN_TREE["model"]
    assert told["Drafts"] == "trees of at most 24 nodes, depth 4, top-k 4"
    assert told["Drafted tokens by number of running requests"] == "1-16: 24"
    assert told["Verification"] == "the target's own sampler"


def test_custom_processors_are_told_with_what_they_leave_of_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "has_custom_processors", lambda model: True)
    assert lines(GRIFFIN_TREE)["Drafts"].startswith("chains of at most 4 tokens, and no trees, because custom logits")
    assert lines(GRIFFIN_CHAIN)["Drafts"] == "chains of at most 4 tokens"


def test_what_is_looked_up_is_told() -> None:
    told = lines(GRIFFIN_TREE | {"prediction_tokens": 8, "use_prompt": True})
    assert told["Looked up in a request's text"] == "at most 8 tokens"
    assert "Looked up in a request's text" not in lines(GRIFFIN_TREE | {"prediction_tokens": 8})


def test_the_default_schedule_is_told() -> None:
    free = {key: value for key, value in GRIFFIN_TREE.items() if "per_batch" not in key}
    told = lines(free | {"adaptive_drafts": False})
    assert "(chain)" in told["Drafted tokens by number of running requests"]


def test_what_the_scheduler_chooses_among_is_told() -> None:
    told = lines(as_long_as_it_pays(GRIFFIN_CHAIN))
    assert told["Drafted tokens"] == "one of 0, 1, 2, 3, 4, as is measured to be fastest at the load"
    assert told["Most drafted tokens by number of running requests"].startswith("1-102: 4 (chain), 103-128: 3 (chain)")


def test_the_depths_that_it_chooses_among_are_told_where_there_are_any() -> None:
    free = {key: value for key, value in GRIFFIN_TREE.items() if "per_batch" not in key}
    assert lines(free | {"adaptive_drafts": True})["Levels of large trees"] == "one of 3, 4, likewise"
    assert "Levels of large trees" not in lines(GRIFFIN_TREE)
    assert "Levels of large trees" not in lines(as_long_as_it_pays(GRIFFIN_CHAIN))


def test_a_chain_keeps_its_length() -> None:
    told = lines(GRIFFIN_CHAIN)
    assert told["Drafts"] == "chains of at most 4 tokens"
    assert told["Drafted tokens by number of running requests"] == "any: 4"


def test_the_target_is_its_own_drafter_with_swift() -> None:
    assert lines(SWIFT)["Drafter"] == "the target itself"


@pytest.mark.parametrize(("speculative", "verifier"), [(SLEM, "the target's own"), (SLRS, "vLLM's rejection")])
def test_who_verifies_is_told(speculative: dict[str, Any], verifier: str) -> None:
    assert lines(speculative)["Verification"].startswith(verifier)


def runner(
    drafters: tuple[str, ...], sizes: dict[str, int], rank: int = 0, keeps: Keeps = Keeps.BESIDE_THE_TARGETS
) -> Any:
    declared = SimpleNamespace(keeps=keeps)
    specs = {name: SimpleNamespace(page_size_bytes=size * 16, block_size=16) for name, size in sizes.items()}
    return SimpleNamespace(
        max_model_len=1024,
        parallel_config=SimpleNamespace(rank=rank),
        speculator=SimpleNamespace(draft_attn_layer_names=set(drafters)),
        get_kv_cache_spec=lambda: specs,
        vllm_config=SimpleNamespace(speculative_config=SimpleNamespace(declared=declared)),
    )


def test_a_drafters_memory_is_told_by_token_and_by_request() -> None:
    name, fact = memory_line(runner(("d",), {"a": 512, "b": 512, "d": 1024}))
    assert name == "Drafter's keys and values"
    assert fact == "1024 bytes a token, 1.0 MiB for a request of 1024 tokens; the target's take 1024 bytes a token"
    assert memory_line(runner((), {"a": 512}, keeps=Keeps.IN_THE_TARGETS))[1] == "none; it uses the target's"
    assert memory_line(runner(("d",), {"a": 512}))[1] == "none; it uses the target's"  # as a Gemma 4's assistant does
    assert memory_line(runner((), {"a": 512}, keeps=Keeps.NOWHERE))[1] == "none"


def test_the_sizes_of_captured_graphs_are_told() -> None:
    whole = [SimpleNamespace(num_reqs=2, num_tokens=8), SimpleNamespace(num_reqs=4, num_tokens=4)]
    in_pieces = [SimpleNamespace(num_reqs=None, num_tokens=512)]  # for any number of requests
    manager = SimpleNamespace(_capture_descs={"FULL": whole, "PIECEWISE": in_pieces})
    assert graphs(SimpleNamespace(draft_graphs=manager, prefill_cudagraph_manager=None)) == "for 2, 4 requests"
    assert graphs(SimpleNamespace(draft_graphs=None)) == "none"


def test_other_ranks_say_nothing() -> None:
    log_start(runner((), {}, rank=1))  # would fail for want of a configuration
