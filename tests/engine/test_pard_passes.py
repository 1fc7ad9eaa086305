"""What PARD's drafters draft in several passes on the real engine: every tree is what the same model alone says follows
the nodes of the tree before it, in transformers and in plain Python.

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
from tests.unit.test_informed import Follows, written_out
from tests.unit.tree_reference import Path as TreePath
from tests.unit.tree_reference import best
from vllm_specext.tree.marginals import best_tree

Engines = Callable[..., Result]

NODES, TOP_K, LEVELS, PASSES = 24, 4, 6, 3
POSITIONS = LEVELS - PASSES + 1
MASKS = POSITIONS - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pard(tmp_path_factory.mktemp("pard"))


Recorded = tuple[list[int], list[list[Pass]]]


@pytest.fixture(scope="module")
def recorded(engines: Engines, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """One request's text, and the passes of each of its drafts."""
    trees = of_method("pard-tree", folder, NODES, TOP_K, tree_depth=LEVELS, draft_passes=PASSES)
    sequence, passes = record(engines, tmp_path_factory.mktemp("passes") / "passes.pt", trees)
    ends = [at for at, one in enumerate(passes) if "tokens" in one and one["tokens"].numel()]
    drafts = [passes[at - PASSES + 1 : at + 1] for at in ends]
    return sequence, [draft for draft in drafts if root_of(draft[0]) < len(sequence)]


def root_of(first: Pass) -> int:
    """The place of the last sampled token, after which the rows with mask tokens are."""
    assert first["ids"][-MASKS:].tolist() == [MASK] * MASKS
    return int(first["positions"][-MASKS]) - 1


def most_likely(places: Follows) -> list[TreePath]:
    """Nodes of the first tree, whose positions know nothing of one another."""
    both = torch.tensor([places], dtype=torch.float64)
    tokens, topology, _ = best_tree(both[..., 0].long(), both[..., 1].float(), NODES)
    paths: list[TreePath] = [()]
    for token, parent in zip(tokens[0].tolist(), topology.parents[0, 1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


class Alone:
    """The drafter in transformers, over the final text."""

    def __init__(self, folder: Path, sequence: list[int]) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder).float().eval().requires_grad_(False)
        self.sequence = sequence
        self.sees_all = False
        """Whether nodes see all that come before them, as they must not."""

    def after(self, root: int, paths: list[TreePath]) -> Tensor:
        """Features ``[P, d]`` of the nodes with these ``paths``."""
        text = self.sequence[: root + 1]
        rows = len(text) + len(paths)
        seen = torch.ones(rows, rows, dtype=torch.bool).tril()
        for row, path in enumerate(paths):
            if not self.sees_all:
                above = [path[: len(other)] == other for other in paths]
                seen[len(text) + row, len(text) :] = torch.tensor(above)
        ids = torch.tensor([text + [path[-1] for path in paths]])
        positions = torch.tensor([[*range(len(text)), *(root + len(path) for path in paths)]])
        made = self.model.model(ids, attention_mask=seen[None, None], position_ids=positions, use_cache=False)
        return made.last_hidden_state[0, len(text) :]

    def best(self, features: Tensor, sharpness: Tensor) -> Follows:
        found = (sharpness * self.model.lm_head(features)).log_softmax(dim=-1).topk(TOP_K)
        return [list(zip(*row, strict=True)) for row in zip(found.indices.tolist(), found.values.tolist(), strict=True)]

    def difference(self, draft: list[Pass]) -> float:
        """Of the nodes' features; what is drafted of the engine's own has to be what follows them."""
        first, *further = draft
        root, sharpness = root_of(first), first["sharpness"]
        at_root = first["positions"].tolist().index(root)
        places = self.best(first["predict"][[at_root, *range(-MASKS, 0)]], sharpness)
        paths = most_likely(places)
        largest = 0.0
        for one in further:
            assert one["ids"].tolist() == [path[-1] for path in paths]
            assert one["positions"].tolist() == [root + len(path) for path in paths]
            largest = max(largest, float((self.after(root, paths) - one["predict"]).abs().max()))
            follows = [places[0], *self.best(one["predict"], sharpness)]
            paths = [node.path for node in best(written_out(paths, follows), NODES)]
        assert further[-1]["tokens"][0].tolist() == [path[-1] for path in paths]
        return largest


def test_every_tree_is_what_follows_the_nodes_of_the_one_before(folder: Path, recorded: Recorded) -> None:
    sequence, drafts = recorded
    alone = Alone(folder, sequence)
    assert len(drafts) >= 6
    assert max(map(alone.difference, drafts)) < 1e-3


def test_nodes_that_see_others_would_be_noticed(folder: Path, recorded: Recorded) -> None:
    sequence, drafts = recorded
    alone = Alone(folder, sequence)
    alone.sees_all = True
    assert min(map(alone.difference, drafts)) > 1e-2


@pytest.mark.extended
def test_more_is_accepted_than_of_one_pass(engines: Engines, folder: Path) -> None:
    """The rows with mask tokens were trained by nobody, but what follows a node is the small model's own."""
    found = []
    for passes in (1, PASSES):
        trees = of_method("pard-tree", folder, NODES, TOP_K, tree_depth=LEVELS, draft_passes=passes)
        counters = engines(trees)["counters"]
        drafts = counters["vllm:spec_decode_num_drafts"]
        found.append(counters["vllm:spec_decode_num_accepted_tokens"] / drafts)
    assert found[1] > 1.25 * found[0] > 0
