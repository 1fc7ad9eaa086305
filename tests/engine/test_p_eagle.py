"""Trees and chains of P-EAGLE drafters on the real engine: the tokens of plain decoding, and drafts that are those of
plain torch.

There is no trained one. The bundled drafter for EAGLE-3 gets a made feature for what is not known yet, so that mostly
the first position of a draft is accepted; what is drafted for the others is compared.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.conftest import TIGHT_FOR_TREES, Result, any_sizes, of_method
from tests.engine.p_eagle import MASK, mask_hidden, p_eagle
from tests.engine.test_eagle_drafting import Plain
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_serving_model import Pass
from tests.engine.test_tree_drafting import record
from tests.engine.windows import windowed
from tests.engine.workload import DRAFTS, TARGET
from vllm_specext.tree.marginals import best_tree

Engines = Callable[..., Result]

extended = pytest.mark.extended
NODES, TOP_K, LEVELS = 24, 4, 8
BY_LOAD = [[1, 2, 59], [3, 4, 24], [5, 6, 4], [7, 8, 0]]
WINDOW = 12
WINDOWED = {"layer_types": ["sliding_attention"], "sliding_window": WINDOW}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return p_eagle(tmp_path_factory.mktemp("p_eagle"))


def trees(folder: Path, nodes: int = NODES, top_k: int = TOP_K, **own: Any) -> dict[str, Any]:
    return of_method("peagle-tree", folder, nodes, top_k, **own)


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


@pytest.mark.parametrize(
    ("nodes", "top_k", "llm", "own"),
    [
        (NODES, TOP_K, {}, {}),
        pytest.param(59, 10, TIGHT_FOR_TREES, {}, marks=extended),
        pytest.param(DRAFTS, 1, {}, {}, marks=extended),
        pytest.param(20, 4, {}, {"tree_depth": 2}, marks=extended),
        pytest.param(59, 10, {}, {"num_speculative_tokens_per_batch_size": BY_LOAD}, marks=extended),
    ],
    ids=["tree", "tight", "chain", "shallow", "by-load"],
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, folder: Path, nodes: int, top_k: int, llm: dict[str, Any], own: dict[str, Any]
) -> None:
    result = engines(trees(folder, nodes, top_k, **own) | llm, keep_async=True)
    assert differing(result, plain) == []
    assert result["sizes"][str(nodes)] >= 10
    assert accepted(result) > 50


@extended
@pytest.mark.parametrize(("nodes", "top_k"), [(NODES, TOP_K), (DRAFTS, 1)], ids=["tree", "chain"])
def test_recorded_drafts_do(engines: Engines, plain: Result, folder: Path, nodes: int, top_k: int) -> None:
    result = engines(trees(folder, nodes, top_k), graphs=[2, 5, 8], keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 100


@extended
def test_drafts_of_one_position_do(engines: Engines, plain: Result, folder: Path) -> None:
    """Without a row with a mask token."""
    result = engines(trees(folder, 4, 4, tree_depth=1), keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 100


@extended
def test_any_sizes_do(engines: Engines, plain: Result, folder: Path) -> None:
    result = engines(any_sizes(trees(folder)), keep_async=True, sabotage="draw_sizes")
    assert differing(result, plain) == []
    assert len([size for size, count in result["sizes"].items() if count > 3]) >= 4
    assert accepted(result) > 50


@extended
@pytest.mark.parametrize("graphs", [None, [2, 5, 8]], ids=["eager", "recorded"])
def test_passes_that_do_not_hold_all_rows_do(
    engines: Engines, plain: Result, folder: Path, graphs: list[int] | None
) -> None:
    """Eight requests have 128 rows with their accepted paths, and 56 without."""
    few = {"max_num_batched_tokens": 48}
    result = engines(trees(folder) | few, keep_async=True, graphs=graphs)
    assert differing(result, plain) == []
    assert accepted(result) > 50


@extended
def test_a_target_with_windows_and_sinks_does(engines: Engines, folder: Path, tmp_path: Path) -> None:
    target = {"model": str(windowed(tmp_path, sinks=True))}
    result = engines(trees(folder) | target, keep_async=True)
    assert differing(result, engines(target)) == []
    assert result["sizes"][str(NODES)] > 60


@extended
def test_a_drafter_with_a_window_does(engines: Engines, plain: Result, tmp_path: Path) -> None:
    result = engines(of_method("peagle-tree", p_eagle(tmp_path, **WINDOWED), NODES, TOP_K), keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 50


@extended
def test_keys_and_values_in_float8_do(engines: Engines, folder: Path) -> None:
    cache = {"kv_cache_dtype": "fp8"}
    result = engines(trees(folder) | cache, keep_async=True)
    assert differing(result, engines(cache)) == []
    assert accepted(result) > 50


@extended
def test_compiled_trees_do(engines: Engines, folder: Path) -> None:
    compiled = {"enforce_eager": False}
    result = engines(trees(folder) | compiled)
    assert differing(result, engines(compiled)) == []
    assert accepted(result) > 50


@pytest.mark.parametrize("sabotage", ["skip_compaction", pytest.param("flip_an_ancestor_bit", marks=extended)])
def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result, folder: Path, sabotage: str) -> None:
    assert is_noticed(engines, plain, trees(folder), sabotage)


class Drafter:
    """The plain drafter over what transformers' target has computed for the final text."""

    def __init__(self, sequence: list[int], window: int | None = None) -> None:
        self.plain, self.sequence, self.window = Plain(), sequence, window or len(sequence) + LEVELS
        self.features = self.plain.features(sequence)
        self.mask_feature = self.plain.drafter.fc(mask_hidden(self.plain.drafter.fc.in_features).float()).detach()
        self.head = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"].float()

    @torch.no_grad()
    def positions(self, anchor: int) -> Tensor:
        """Features ``[LEVELS, d]`` of what is drafted after the token at ``anchor``."""
        ids = torch.tensor([self.sequence[1 : anchor + 1] + [MASK] * (LEVELS - 1)])
        features = torch.cat((self.features[:anchor], self.mask_feature.expand(LEVELS - 1, -1)))[None]
        rows = ids.shape[1]
        seen = torch.ones(1, 1, rows, rows, dtype=torch.bool).tril().triu(1 - self.window)
        predict, _, _ = self.plain(ids, features, torch.arange(rows)[None], seen, None)
        return predict[0, anchor - 1 :]

    def tree(self, drafted: Tensor, sharpness: Tensor) -> list[int]:
        best = (sharpness * (drafted @ self.head.T)).log_softmax(dim=-1).topk(TOP_K)
        tokens, _, _ = best_tree(best.indices[None], best.values[None], NODES)
        return tokens[0].tolist()

    def difference(self, one: Pass) -> float:
        """Of the features of rows with mask tokens; the drafts have to be the same if there is none."""
        drafted = self.positions(anchor_of(one))
        found = float((drafted[1:] - one["predict"][1 - LEVELS :]).abs().max())
        assert found > 1e-3 or one["tokens"][0].tolist() == self.tree(drafted, one["sharpness"])
        return found


Recorded = tuple[list[int], list[Pass]]


@pytest.fixture(scope="module")
def recorded(engines: Engines, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded_of(engines, folder, tmp_path_factory.mktemp("passes"))


def recorded_of(engines: Engines, folder: Path, passes_folder: Path) -> Recorded:
    """The text and the drafts' passes of a request."""
    sequence, passes = record(engines, passes_folder / "passes.pt", trees(folder))
    # vLLM 0.33 drafts nothing after a request's last token.
    drafts = [one for one in passes if "tokens" in one and one["tokens"].numel()]
    return sequence, [one for one in drafts if anchor_of(one) < len(sequence)]


def anchor_of(one: Pass) -> int:
    """The place of the last sampled token, which is that of the first mask token's row."""
    first = 1 - LEVELS
    assert one["ids"][first:].tolist() == [MASK] * (LEVELS - 1)
    return int(one["positions"][first])


def test_every_draft_is_that_of_plain_torch(recorded: Recorded) -> None:
    sequence, passes = recorded
    drafter = Drafter(sequence)
    assert len([one for one in passes if len(one["ids"]) > LEVELS]) >= 5  # with the accepted paths
    assert len([one for one in passes if len(one["ids"]) < LEVELS]) >= 1  # after a prompt
    assert max(drafter.difference(one) for one in passes) < 1e-3


def test_another_feature_for_what_is_not_known_would_be_noticed(recorded: Recorded) -> None:
    sequence, passes = recorded
    drafter = Drafter(sequence)
    drafter.mask_feature = torch.zeros_like(drafter.mask_feature)
    assert min(drafter.difference(one) for one in passes) > 1e-2


@extended
def test_drafts_of_a_drafter_with_a_window_are_those_of_plain_torch(engines: Engines, tmp_path: Path) -> None:
    sequence, passes = recorded_of(engines, p_eagle(tmp_path, **WINDOWED), tmp_path)
    assert max(Drafter(sequence, WINDOW).difference(one) for one in passes) < 1e-3
    assert max(Drafter(sequence, WINDOW + 1).difference(one) for one in passes) > 1e-2
