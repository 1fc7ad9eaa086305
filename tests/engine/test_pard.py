"""What PARD's drafters draft on the real engine is what the same model alone drafts in transformers.

A mistake here would never change the output, only make drafts worse, so that no test of equality would notice it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.engine.conftest import Result, of_method
from tests.engine.pard import MASK, pard
from tests.engine.test_serving_model import Pass
from tests.engine.test_tree_drafting import record
from vllm_specext.tree.marginals import best_tree

Engines = Callable[..., Result]

NODES, TOP_K, LEVELS = 24, 4, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pard(tmp_path_factory.mktemp("pard"))


class Alone:
    """The drafter in transformers, over the final text."""

    def __init__(self, folder: Path, sequence: list[int]) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder).float().eval().requires_grad_(False)
        self.sequence, self.mask = sequence, MASK

    def positions(self, root: int) -> Tensor:
        """Features ``[LEVELS, d]`` of what is drafted after the token at ``root``."""
        ids = self.sequence[: root + 1] + [self.mask] * (LEVELS - 1)
        return self.model.model(torch.tensor([ids])).last_hidden_state[0, root:]

    def tree(self, features: Tensor, sharpness: Tensor) -> list[int]:
        best = (sharpness * self.model.lm_head(features)).log_softmax(dim=-1).topk(TOP_K)
        tokens, _, _ = best_tree(best.indices[None], best.values[None], NODES)
        return tokens[0].tolist()

    def difference(self, one: Pass) -> float:
        """Of the features of rows with mask tokens; the drafts have to be the same if there is none."""
        features = self.positions(root_of(one))
        found = float((features[1:] - one["predict"][1 - LEVELS :]).abs().max())
        assert found > 1e-3 or one["tokens"][0].tolist() == self.tree(features, one["sharpness"])
        return found


Recorded = tuple[list[int], list[Pass]]


@pytest.fixture(scope="module")
def recorded(engines: Engines, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    trees = of_method("pard-tree", folder, NODES, TOP_K, draft_passes=1)
    sequence, passes = record(engines, tmp_path_factory.mktemp("passes") / "passes.pt", trees)
    # vLLM 0.33 drafts nothing after a request's last token.
    drafts = [one for one in passes if "tokens" in one and one["tokens"].numel()]
    return sequence, [one for one in drafts if root_of(one) < len(sequence)]


def root_of(one: Pass) -> int:
    """The place of the last sampled token, after which the rows with mask tokens are."""
    first = 1 - LEVELS
    assert one["ids"][first:].tolist() == [MASK] * (LEVELS - 1)
    return int(one["positions"][first]) - 1


def test_every_draft_is_that_of_the_model_alone(folder: Path, recorded: Recorded) -> None:
    sequence, passes = recorded
    alone = Alone(folder, sequence)
    assert len([one for one in passes if len(one["ids"]) > LEVELS]) >= 5  # with the accepted paths
    assert len([one for one in passes if len(one["ids"]) == LEVELS]) >= 1  # after a prompt
    assert max(alone.difference(one) for one in passes) < 1e-3


def test_another_mask_token_would_be_noticed(folder: Path, recorded: Recorded) -> None:
    sequence, passes = recorded
    alone = Alone(folder, sequence)
    alone.mask = MASK + 1
    assert min(alone.difference(one) for one in passes) > 1e-2
