"""Trees that may end at several depths are those that would have been grown to each of them alone."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_specext.engine.drafting.growth import FirstLevel, LevelByLevel
from vllm_specext.engine.drafting.node_passes import Nodes
from vllm_specext.engine.drafting.paths import PathInputs
from vllm_specext.engine.drafting.recorded_passes import RecordedPasses
from vllm_specext.engine.drafting.roots import Roots
from vllm_specext.engine.drafting.several_depths import Growth
from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.engine.drafting.tree_grower import GrowthInputs, TreeGrower
from vllm_specext.engine.drafting.tree_sizes import TreeSizes
from vllm_specext.tree.budget import TreeShape

REQUESTS, WIDTH, VOCABULARY = 3, 8, 50
SHAPE = TreeShape(15, 6, 3)
DEPTHS = [3, 4, 6]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """What a pass is run in."""
    with torch.inference_mode():
        yield


class ToyDrafter:
    """Its features are made of a node's token, position and parent; ``passes`` counts the levels that ran."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=made)
        self.head = torch.randn(WIDTH, VOCABULARY, generator=made)
        self.text = torch.randn(REQUESTS, WIDTH, generator=made)
        self.passes = torch.zeros(1, dtype=torch.int64)
        self.roots = Roots.buffers(REQUESTS, CPU)
        self.grow = LevelByLevel(self.start, self.run, self.best, self.roots, 0)  # type: ignore[arg-type]

    def start(self, growth: Growth) -> FirstLevel:
        features = self.text[: growth.requests]
        return FirstLevel(*self.best(features, SHAPE.top_k, features.new_ones(len(features))), features)

    def run(self, nodes: Nodes, *sizes: int) -> tuple[Tensor, Tensor]:
        self.passes += 1
        assert nodes.features is not None
        features = torch.tanh(self.embedding[nodes.ids] + nodes.features + 0.1 * nodes.positions[..., None])
        features = features.flatten(0, 1)
        return features, features.roll(1, dims=1)

    def best(self, features: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, tokens = (features @ self.head).log_softmax(dim=-1).topk(k)
        return tokens, log_probs

    def alone(self, depth: int) -> TreeDraft:
        """Grown to this depth and no other."""
        shape = TreeShape(SHAPE.nodes, depth, SHAPE.top_k)
        return self.grow(Growth(REQUESTS, shape, False, 100, [depth]))[depth]


def assert_same(drafted: TreeDraft, other: TreeDraft) -> None:
    assert torch.equal(drafted.tokens, other.tokens)
    for name, tensor in vars(drafted.topology).items():
        assert torch.equal(tensor, getattr(other.topology, name)), name
    assert drafted.expected is not None
    assert other.expected is not None
    assert torch.equal(drafted.expected, other.expected)
    assert torch.equal(drafted.chain(), other.chain())
    assert drafted.chain_lengths == other.chain_lengths == other.chain().shape[1]


def test_one_growth_has_the_tree_of_every_depth() -> None:
    drafter = ToyDrafter()
    grown = drafter.grow(Growth(REQUESTS, SHAPE, False, 100, DEPTHS))
    assert list(grown) == DEPTHS
    assert int(drafter.passes) == SHAPE.depth - 1
    for depth, drafted in grown.items():
        assert_same(drafted, drafter.alone(depth))
        assert int(drafted.topology.depths.max()) <= depth
    with pytest.raises(AssertionError):
        assert_same(grown[3], grown[6])


def growing(drafter: ToyDrafter, graphs: RecordedPasses | None) -> Callable[[int | None], TreeDraft]:
    """The drafts of steps by the depth that they say."""
    inputs = GrowthInputs(drafter.roots, PathInputs.buffers(REQUESTS, SHAPE.depth + 1, CPU), 0, 100)
    grower = TreeGrower(drafter.grow, inputs, TreeSizes(SHAPE, [SHAPE.nodes] * 9, 100, any_depth=True), 100)

    def draft(depth: int | None) -> TreeDraft:
        step: Any = SimpleNamespace(requests=REQUESTS, depth=depth, longest=10)
        return grower(step, SHAPE, False, graphs)

    return draft


def test_a_replay_ends_at_the_depth_of_its_step() -> None:
    """The first growth is recorded, with all levels; those after it run as many as they need, of the text then."""
    drafter = ToyDrafter()
    draft = growing(drafter, RecordedPasses(REQUESTS))
    assert_same(draft(3), drafter.alone(3))
    for round_, depth in enumerate((3, 6, 4, None, 3, 5, 6)):
        drafter.text.copy_(torch.randn(REQUESTS, WIDTH, generator=torch.Generator().manual_seed(10 + round_)))
        ends = depth if depth in DEPTHS else SHAPE.depth
        expected = drafter.alone(ends)
        before = int(drafter.passes)
        drafted = draft(depth)
        assert int(drafter.passes) - before == ends - 1
        assert_same(drafted, expected)


def test_a_growth_that_leaves_out_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    drafter = ToyDrafter()
    draft = growing(drafter, RecordedPasses(REQUESTS))
    draft(6)
    stock = Growth.left_out
    monkeypatch.setattr(Growth, "left_out", lambda self, depth: stock(self, depth) | {("after", 3)})
    drafter.text.copy_(torch.randn(REQUESTS, WIDTH, generator=torch.Generator().manual_seed(10)))
    with pytest.raises(AssertionError):
        assert_same(draft(6), drafter.alone(6))


def test_where_no_depth_is_chosen_the_pass_is_not_cut() -> None:
    pieces: list[Any] = []
    ToyDrafter().grow(Growth(REQUESTS, SHAPE, False, 100, [SHAPE.depth], pieces.append))
    assert pieces == []
    ToyDrafter().grow(Growth(REQUESTS, SHAPE, False, 100, DEPTHS, pieces.append))
    assert pieces == [("tree", 3), ("after", 3), ("tree", 4), ("after", 4), ("tree", 6)]


def test_a_step_that_is_not_recorded_grows_no_further_than_it_says() -> None:
    drafter = ToyDrafter()
    drafted = growing(drafter, None)(4)
    assert int(drafter.passes) == 3
    assert_same(drafted, drafter.alone(4))
