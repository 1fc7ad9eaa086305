"""Trees and chains of a language model with the target's tokenizer: token equality with plain decoding on the real
engine for every kind of request, and drafts that are those of the same model alone. The faults below must break both.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.fewer_layers import write_without_layers
from tests.engine.conftest import ROUND, TIGHT_FOR_TREES, Result, any_sizes, of_method
from tests.engine.pard import KEPT
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_serving_model import Pass
from tests.engine.test_trees import truncated
from tests.engine.workload import DRAFTS, GREEDY, TARGET, requests
from vllm_specext.tree.expansion import Expansion, best_tokens
from vllm_specext.tree.topology import unpack

Engines = Callable[..., Result]

TOP_K, LEVELS, NODES, TOKENS = 4, 6, 24, 24
REQUEST: dict[str, Any] = requests(3)[2]


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target without some of its layers: a smaller model with the same tokenizer."""
    folder = tmp_path_factory.mktemp("drafter")
    write_without_layers(TARGET, KEPT, folder)
    return folder


def trees(drafter: Path, nodes: int, top_k: int, **own: Any) -> dict[str, Any]:
    return of_method("draft-model-tree", drafter, nodes, top_k, **own)


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


@pytest.mark.parametrize(
    ("nodes", "top_k", "llm", "asynchronous"),
    [
        pytest.param(24, 4, {}, False, marks=pytest.mark.extended),
        pytest.param(24, 4, {}, True, marks=pytest.mark.extended),
        (59, 10, TIGHT_FOR_TREES, False),
        pytest.param(59, 10, TIGHT_FOR_TREES, True, marks=pytest.mark.extended),
    ],
    ids=["24-roomy-sync", "24-roomy-async", "59-tight-sync", "59-tight-async"],
)
def test_trees_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, drafter: Path, nodes: int, top_k: int, llm: dict[str, Any], asynchronous: bool
) -> None:
    result = engines(trees(drafter, nodes, top_k) | llm, keep_async=asynchronous)
    assert result["v2"]
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 130
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert result["sizes"][str(nodes)] > 60
    if llm:
        assert result["counters"]["vllm:num_preemptions"] >= 3
        assert len(truncated(result, nodes)) >= 2


@pytest.mark.extended
@pytest.mark.parametrize("schedule", [None, [[1, 2, 59], [3, 4, 24], [5, 6, 4], [7, 8, 0]]])
def test_chains_and_trees_by_load_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, drafter: Path, schedule: list[list[int]] | None
) -> None:
    by_load = {"num_speculative_tokens_per_batch_size": schedule}
    result = engines(trees(drafter, 59, 10, **by_load) if schedule else trees(drafter, DRAFTS, 1), keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 40


@pytest.mark.extended
def test_any_sizes_and_depths_give_the_tokens_of_plain_decoding(engines: Engines, plain: Result, drafter: Path) -> None:
    result = engines(any_sizes(trees(drafter, 24, 4)), keep_async=True, sabotage="draw_sizes")
    assert differing(result, plain) == []
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= 2


@pytest.mark.extended
def test_trees_drafted_in_graphs_are_those_drafted_without(engines: Engines, plain: Result, drafter: Path) -> None:
    """What CUDA graphs would replay is recorded, padded as they are."""
    result = engines(trees(drafter, 24, 4), graphs=[2, 5, 8], keep_async=True)
    assert differing(result, plain) == []
    assert set(result["replays"]) == {2, 5, 8}
    eager = engines(trees(drafter, 24, 4), keep_async=True)["counters"]
    for counter in ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"):
        assert result["counters"][counter] == pytest.approx(eager[counter], rel=0.02)


@pytest.mark.extended
def test_a_deliberate_fault_in_a_tree_is_noticed(engines: Engines, plain: Result, drafter: Path) -> None:
    assert is_noticed(engines, plain, trees(drafter, 24, 4), "skip_compaction")


def test_the_target_as_its_own_drafter_is_always_accepted(engines: Engines) -> None:
    """A chain of what the target itself would say: whatever the drafter misses of the text would be seen here."""
    rows = [one | {"sampling": GREEDY | {"max_tokens": 48, "ignore_eos": True}} for one in ROUND[:8]]
    result = engines(trees(TARGET, DRAFTS, 1), rounds=[rows], keep_async=True)
    assert differing(result, engines({}, rounds=[rows])) == []
    counters = result["counters"]
    full = counters["vllm:spec_decode_num_drafts"] * DRAFTS
    # The last draft of a request goes past its end.
    assert counters["vllm:spec_decode_num_accepted_tokens"] >= full - DRAFTS * len(rows)


@pytest.fixture(scope="module")
def recorded(engines: Engines, drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], list[Pass]]:
    path = tmp_path_factory.mktemp("passes") / "passes.pt"
    sampling = GREEDY | {"max_tokens": TOKENS, "ignore_eos": True}
    asked = [[{"ids": REQUEST["ids"], "sampling": sampling}]]
    result = engines(trees(drafter, NODES, TOP_K), rounds=asked, record=str(path))
    sequence = REQUEST["ids"] + result["outputs"][0]["ids"]
    return sequence, [one for one in torch.load(path, weights_only=True) if int(one["positions"][0]) < len(sequence)]


def drafts(passes: list[Pass], sequence: list[int]) -> list[tuple[int, list[Pass]]]:
    """The place of the root, and the passes of the further levels, of every draft."""
    found = []
    for at, one in enumerate(passes):
        levels = passes[at + 1 : at + LEVELS]
        if len(one["ids"]) != TOP_K and len(levels) == LEVELS - 1 and all(len(x["ids"]) == TOP_K for x in levels):
            found.append((int(levels[0]["positions"][0]) - 1, levels))
    return [(root, levels) for root, levels in found if root < len(sequence)]


class Replay:
    """The drafter alone in transformers, over the final text."""

    def __init__(self, folder: Path, sequence: list[int]) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder).float().eval().requires_grad_(False)
        self.sequence, self.largest = sequence, 0.0

    def draft(self, root: int, levels: list[Pass]) -> None:
        text = self.sequence[: root + 1]
        sharpness = levels[0]["sharpness"].expand(1, TOP_K)
        growing = Expansion(*best_tokens(self._logits(text, [], [])[-1:], TOP_K, sharpness[:, 0]), LEVELS)
        ids: list[int] = []
        visible: list[Tensor] = []
        for level, one in enumerate(levels):
            frontier = growing.frontier
            assert one["ids"].tolist() == frontier.tokens[0].tolist()
            assert one["positions"].tolist() == [root + 1 + level] * TOP_K
            ids += one["ids"].tolist()
            visible += list(unpack(frontier.visible[0], (level + 1) * TOP_K))
            features = self._features(text, ids, visible)[-TOP_K:]
            self.largest = max(self.largest, float((features - one["predict"]).abs().max()))
            growing.grow(*best_tokens(self.model.lm_head(features)[None], TOP_K, sharpness))

    def _logits(self, text: list[int], ids: list[int], visible: list[Tensor]) -> Tensor:
        return self.model.lm_head(self._features(text, ids, visible))

    def _features(self, text: list[int], ids: list[int], visible: list[Tensor]) -> Tensor:
        count = len(text) + len(ids)
        mask = torch.ones(count, count, dtype=torch.bool).tril()
        places = list(range(len(text)))
        for node, bits in enumerate(visible):
            row = torch.zeros(len(ids), dtype=torch.bool)
            row[: len(bits)] = bits
            mask[len(text) + node, len(text) :] = row
            places.append(len(text) - 1 + int(row.sum()))
        hidden = self.model.model(
            torch.tensor([text + ids]), attention_mask=mask[None, None], position_ids=torch.tensor([places])
        )
        return hidden.last_hidden_state[0]


def test_every_draft_is_that_of_the_model_alone(drafter: Path, recorded: tuple[list[int], list[Pass]]) -> None:
    sequence, passes = recorded
    replay = Replay(drafter, sequence)
    made = drafts(passes, sequence)
    assert len(made) >= 5
    for root, levels in made:
        replay.draft(root, levels)
    assert replay.largest < 1e-3


def test_a_drafter_that_reads_another_text_would_be_noticed(
    drafter: Path, recorded: tuple[list[int], list[Pass]]
) -> None:
    sequence, passes = recorded
    replay = Replay(drafter, [*sequence[:3], 5, *sequence[4:]])
    try:
        replay.draft(*drafts(passes, sequence)[2])
    except AssertionError:  # other tokens
        return
    assert replay.largest > 1e-2
