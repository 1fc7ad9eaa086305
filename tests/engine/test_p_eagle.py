"""What P-EAGLE drafters draft on the real engine is what plain torch drafts.

A mistake here would never change the output, only make drafts worse, so that no test of equality would notice it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.conftest import Result, of_method
from tests.engine.p_eagle import MASK, mask_hidden, p_eagle
from tests.engine.test_eagle_drafting import Plain
from tests.engine.test_lossless import differing
from tests.engine.test_serving_model import Pass
from tests.engine.test_tree_drafting import record
from tests.engine.workload import TARGET
from vllm_specext.tree.marginals import best_tree

Engines = Callable[..., Result]

NODES, TOP_K, LEVELS = 24, 4, 8
WINDOW = 12
WINDOWED = {"layer_types": ["sliding_attention"], "sliding_window": WINDOW}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return p_eagle(tmp_path_factory.mktemp("p_eagle"))


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
    sequence, passes = record(engines, passes_folder / "passes.pt", of_method("peagle-tree", folder, NODES, TOP_K))
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


@pytest.mark.extended
def test_drafts_of_a_drafter_with_a_window_are_those_of_plain_torch(engines: Engines, tmp_path: Path) -> None:
    sequence, passes = recorded_of(engines, p_eagle(tmp_path, **WINDOWED), tmp_path)
    assert max(Drafter(sequence, WINDOW).difference(one) for one in passes) < 1e-3
    assert max(Drafter(sequence, WINDOW + 1).difference(one) for one in passes) > 1e-2


@pytest.mark.extended
def test_such_drafts_give_the_tokens_of_plain_decoding(engines: Engines, tmp_path: Path) -> None:
    result = engines(of_method("peagle-tree", p_eagle(tmp_path, **WINDOWED), NODES, TOP_K), keep_async=True)
    assert differing(result, engines({})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 50
