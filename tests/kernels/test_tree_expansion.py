"""The expansion in one call a level against the expansion in torch, bit by bit, with ties and with -inf.

Runs in C++, with the Triton kernels on a GPU, and with the kernels under Triton's interpreter
(``cases/case_tree_expansion.py``). That the expansion in torch is right is tested in ``tests/unit``.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields

import pytest
import torch
from bodies import GPU, choose, fill_new_memory
from torch import Tensor

from vllm_specext.kernels.tree_expansion import LARGEST_POOL, expansion
from vllm_specext.kernels.tree_expansion.native import NativeExpansion
from vllm_specext.tree.budget import pool_size
from vllm_specext.tree.expansion import Expansion

SCORES = {
    "distinct": lambda random, shape: -torch.rand(shape, generator=random) * 5,
    "three values": lambda random, shape: torch.randint(-2, 1, shape, generator=random) / 2,
    "two values": lambda random, shape: torch.randint(-1, 1, shape, generator=random).float(),
    "all zero": lambda random, shape: torch.zeros(shape),
    "some -inf": lambda random, shape: torch.tensor([0, -1, -torch.inf])[torch.randint(3, shape, generator=random)],
    "all -inf": lambda random, shape: torch.full(shape, -torch.inf),
}
"""Log-probabilities, which the expansion wants best first."""

Start = Callable[[Tensor, Tensor, int], Expansion]


@pytest.fixture
def needs_gpu() -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(params=["C++", GPU])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Start:
    choose(request.param, monkeypatch)
    if request.param == "C++":
        fill_new_memory(monkeypatch)
        return in_cpp

    from vllm_specext.kernels.tree_expansion.kernel import FusedExpansion

    def on_gpu(tokens: Tensor, log_probs: Tensor, levels: int) -> Expansion:
        fused = expansion(tokens.cuda(), log_probs.cuda(), levels)
        assert isinstance(fused, FusedExpansion)
        return fused

    return on_gpu


def in_cpp(tokens: Tensor, log_probs: Tensor, levels: int) -> Expansion:
    native = expansion(tokens, log_probs, levels)
    assert isinstance(native, NativeExpansion)
    return native


def proposals(scores: str, requests: int, k: int, levels: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """The first level's ``[R, k]``, then ``[R, k, k]``."""
    random = torch.Generator().manual_seed(seed)
    for shape in [(requests, k), *[(requests, k, k)] * (levels - 1)]:
        log_probs = SCORES[scores](random, shape).sort(dim=-1, descending=True).values
        yield torch.rand(*shape[:-1], 1000, generator=random).topk(k).indices, log_probs


def same(fused: object, torch_only: object, where: str) -> None:
    for field in fields(torch_only):
        ours, theirs = getattr(fused, field.name), getattr(torch_only, field.name)
        assert ours.dtype == theirs.dtype, f"{where}: {field.name}"
        assert torch.equal(ours.cpu(), theirs), f"{where}: {field.name}"


def check(start: Start, levels: int, drafts: Iterator[tuple[Tensor, Tensor]], sizes: list[int]) -> None:
    """All that an expansion shows, after every level."""
    first = next(drafts)
    fused, plain = start(*first, levels), Expansion(*first, levels)
    for level in range(1, levels + 1):
        same(fused.frontier, plain.frontier, f"level {level}")
        assert (fused.size, fused.grown) == (plain.size, plain.grown)
        for count in {min(nodes, plain.size) for nodes in sizes}:
            tokens, topology, accepted = fused.tree(count)
            expected, shape, expected_accepted = plain.tree(count)
            assert torch.equal(tokens.cpu(), expected)
            torch.testing.assert_close(accepted.cpu(), expected_accepted, rtol=1e-5, atol=1e-6)
            same(topology, shape, f"tree of {count} nodes of {level} levels")
        assert torch.equal(fused.chain().cpu(), plain.chain())
        for pool in ("tokens", "scores", "parents"):
            ours, theirs = getattr(fused, pool)[:, : fused.size], getattr(plain, pool)[:, : plain.size]
            assert torch.equal(ours.cpu(), theirs), pool
        if level < levels:
            device = fused.frontier.tokens.device
            tokens, log_probs = next(drafts)
            fused.grow(tokens.to(device), log_probs.to(device))
            plain.grow(tokens, log_probs)


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize(("k", "levels"), [(1, 3), (3, 4), (6, 2), (4, 1)])
def test_levels_and_trees_are_those_of_the_expansion_in_torch(start: Start, k: int, levels: int, scores: str) -> None:
    check(start, levels, proposals(scores, 2, k, levels), [1, 31, 32, pool_size(levels, k)])


@pytest.mark.parametrize("scores", ["distinct", "three values", "some -inf"])
def test_trees_of_the_usual_size_are_those_of_the_expansion_in_torch(start: Start, scores: str) -> None:
    check(start, 6, proposals(scores, 1, 10, 6), [24, 59])


def test_the_first_level_may_be_cut_out_of_a_wider_buffer(start: Start) -> None:
    tokens, log_probs = torch.arange(20).view(2, 10), -torch.arange(20.0).view(2, 10)
    fused, plain = start(tokens[:, :4], log_probs[:, :4], 2), Expansion(tokens[:, :4], log_probs[:, :4], 2)
    same(fused.frontier, plain.frontier, "level 1")


def test_another_score_gives_another_tree(start: Start) -> None:
    drafts = list(proposals("distinct", 2, 4, 2))
    fused, plain = (begin(*drafts[0], 2) for begin in (start, Expansion))
    device = fused.frontier.tokens.device
    fused.grow(*(tensor.to(device) for tensor in drafts[1]))
    plain.grow(drafts[1][0], drafts[1][1].flip(1))
    assert not torch.equal(fused.tree(12)[1].parents.cpu(), plain.tree(12)[1].parents)


LARGE = pytest.mark.parametrize(
    ("requests", "k", "levels"), [(64, 10, 6), (5, 10, 11), (64, 8, 7), (2, 15, 5), (1, 31, 2)]
)


@pytest.mark.gpu
@LARGE
@pytest.mark.parametrize("scores", ["distinct", "three values"])
@pytest.mark.usefixtures("needs_gpu")
def test_batches_and_large_pools_on_a_gpu(start: Start, requests: int, k: int, levels: int, scores: str) -> None:
    check(start, levels, proposals(scores, requests, k, levels), [59, 127, 255])


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_gpu")
def test_a_captured_expansion_follows_the_scores() -> None:
    (tokens, log_probs), (deeper, deeper_log_probs) = (
        tuple(tensor.cuda() for tensor in draft) for draft in proposals("distinct", 4, 10, 2)
    )

    def grown(begin: Start) -> tuple[Tensor, Tensor]:
        growing = begin(tokens, log_probs, 2)
        growing.grow(deeper, deeper_log_probs)
        drafted, topology, _ = growing.tree(59)
        return drafted, topology.ancestors

    grown(expansion)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = grown(expansion)
    deeper_log_probs.copy_(deeper_log_probs.flip(1))
    graph.replay()
    for got, want in zip(captured, grown(Expansion), strict=True):
        assert torch.equal(got, want)


def test_without_a_compiler_and_for_large_pools_on_a_gpu_the_expansion_is_that_in_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose("torch", monkeypatch)
    assert type(expansion(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4), 3)) is Expansion
    if torch.cuda.is_available():
        k = 32
        assert pool_size(2, k) > LARGEST_POOL
        tokens = torch.zeros(1, k, dtype=torch.int64, device="cuda")
        assert type(expansion(tokens, torch.zeros(1, k, device="cuda"), 2)) is Expansion
