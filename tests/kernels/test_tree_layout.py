"""Where the rows of draft trees lie, against plain loops over random trees.

Every test here runs in torch and in C++, with the Triton kernels on a GPU, and with these under Triton's interpreter
(``cases/case_tree_layout.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from bodies import BODIES, choose, fill_new_memory
from torch import Tensor

from vllm_specext.kernels import tree_layout
from vllm_specext.tree.topology import Topology, pack, unpack

LayOut = Callable[..., Tensor]
AcceptedRows = Callable[..., tuple[Tensor, Tensor]]
SLOTS, WILD = 9, -77


@pytest.fixture(params=BODIES)
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[LayOut, AcceptedRows]:
    """``lay_out`` and ``accepted_rows`` of tensors on the CPU, wherever they run."""
    choose(request.param, monkeypatch)
    if request.param != "GPU":
        fill_new_memory(monkeypatch)
        return tree_layout.lay_out, tree_layout.accepted_rows
    return lay_out_on_gpu, lambda *tensors: tuple(
        o.cpu() for o in tree_layout.accepted_rows(*map(Tensor.cuda, tensors))
    )


def on_gpu(value: Any) -> Any:
    if isinstance(value, Topology):
        return Topology(*map(Tensor.cuda, vars(value).values()))
    return value.cuda() if isinstance(value, Tensor) else value


def lay_out_on_gpu(*arguments: Any) -> Tensor:
    copies = [on_gpu(value) for value in arguments]
    chain = tree_layout.lay_out(*copies).cpu()
    for value, copied in zip(arguments, copies, strict=True):
        if isinstance(value, Tensor):
            value.copy_(copied)
    return chain


@dataclass
class Step:
    """Requests of ``lengths`` rows in slots of their own, some of them with no draft."""

    nodes: int
    lengths: list[int]
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        draw = lambda most, *shape: torch.randint(most, shape, generator=generator)  # noqa: E731
        count = len(self.lengths)
        self.slots = torch.randperm(SLOTS, generator=generator)[:count].int()
        self.starts = torch.tensor([0, *self.lengths]).cumsum(0).int()
        self.prefixes = 1 + draw(60, count)
        self.seq_lens = (self.prefixes + torch.tensor(self.lengths)).int()
        self.has_draft = draw(4, count) > 0
        self.prefill_lens = torch.full((SLOTS,), WILD, dtype=torch.int32)
        self.prefill_lens[self.slots.long()] = (self.prefixes + torch.where(self.has_draft, -draw(2, count), 1)).int()
        seen = draw(2, SLOTS, self.nodes + 1, self.nodes + 1).bool()
        depths = draw(7, SLOTS, self.nodes + 1)
        self.trees = Topology(torch.zeros_like(depths), depths, pack(seen))
        self.causal = Topology.chain(1, self.nodes, "cpu").ancestors[0]
        chains = [first + torch.arange(rows) for first, rows in zip(self.prefixes, self.lengths, strict=True)]
        self.chain = torch.cat(chains)

    def run(self, lay_out: LayOut, last_position: int = 1000) -> tuple[list[int], Tensor, Tensor]:
        """Positions, prefix lengths and visible nodes, the last two with what follows the requests."""
        count = len(self.lengths) + 2
        # A step has other rows and a batch other requests after those that verify.
        all_positions = torch.cat((self.chain, torch.full((3,), WILD)))
        prefix_lens = torch.full((count,), WILD, dtype=torch.int32)
        visible = torch.full((count, *self.causal.shape), WILD, dtype=torch.int32)
        given = self.slots, self.starts, self.seq_lens, self.prefill_lens, self.trees, self.causal
        positions = all_positions[: len(self.chain)]
        chain = lay_out(*given, positions, last_position, prefix_lens, visible)
        assert torch.equal(chain, self.chain)
        assert (all_positions[len(self.chain) :] == WILD).all()
        assert (prefix_lens[-2:] == WILD).all()
        assert (visible[-2:] == WILD).all()
        return positions.tolist(), prefix_lens[:-2], visible[:-2]

    def positions(self, last_position: int = 1000) -> list[int]:
        found = []
        for request, rows in enumerate(self.lengths):
            depths = self.trees.depths[int(self.slots[request])].tolist()
            for node in range(rows):
                place = depths[node] if self.has_draft[request] else node
                found.append(min(int(self.prefixes[request]) + place, last_position))
        return found


STEPS = [
    Step(1, [2]),
    Step(4, [5, 1, 3, 2], seed=1),
    Step(24, [25] * 6, seed=2),
    Step(31, [32, 32, 2], seed=3),
    Step(32, [33, 1, 33], seed=4),
    Step(60, [61, 61, 7, 61, 61, 61, 61, 61, 61], seed=5),
    Step(128, [129, 100], seed=6),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.nodes}-nodes")
def test_rows_get_the_positions_of_their_depth(layout: tuple[LayOut, AcceptedRows], step: Step) -> None:
    positions, prefix_lens, _ = step.run(layout[0])
    assert positions == step.positions()
    assert prefix_lens.tolist() == step.prefixes.tolist()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.nodes}-nodes")
def test_drafts_show_their_ancestors_and_the_others_all_before_them(
    layout: tuple[LayOut, AcceptedRows], step: Step
) -> None:
    visible = step.run(layout[0])[2]
    for request, slot in enumerate(step.slots.tolist()):
        expected = step.trees.ancestors[slot] if step.has_draft[request] else step.causal
        assert torch.equal(visible[request], expected)


def test_both_kinds_of_request_are_among_them() -> None:
    assert {bool(draft) for step in STEPS for draft in step.has_draft} == {True, False}
    causal = unpack(STEPS[1].causal, 5)
    assert torch.equal(causal, torch.ones(5, 5).tril().bool())


def test_no_position_is_after_the_last(layout: tuple[LayOut, AcceptedRows]) -> None:
    step = STEPS[5]
    last = int(step.prefixes.max()) + 2
    positions, _, _ = step.run(layout[0], last)
    assert positions == step.positions(last)
    assert max(step.positions()) > last


def test_a_wrong_depth_shows(layout: tuple[LayOut, AcceptedRows]) -> None:
    step = Step(24, [25] * 6, seed=2)
    expected = step.positions()
    step.trees.depths[:, 3] += 1
    assert step.run(layout[0])[0] != expected


@pytest.mark.parametrize("length", [2, 7, 8, 41])
@pytest.mark.parametrize("requests", [1, 64])
def test_accepted_paths_are_rows_and_go_where_a_chain_would_have_them(
    layout: tuple[LayOut, AcceptedRows], length: int, requests: int
) -> None:
    generator = torch.Generator().manual_seed(length)
    accepted = torch.randint(1, length + 1, (requests,), generator=generator).int()
    starts = (torch.arange(requests) * 61).int()
    path = torch.randint(1, 61, (requests, length + 2), generator=generator)[:, :length]
    path[:, 0] = 0
    source, destination = layout[1](starts, path, accepted)
    # Triton compiles another variant for a pointer that is aligned to less.
    assert source.data_ptr() % 16 == destination.data_ptr() % 16 == 0
    assert source.dtype == destination.dtype == torch.int64
    for request, count in enumerate(accepted.tolist()):
        first, rest = int(starts[request]), [int(starts[request])] * (length - count)
        assert source[request].tolist() == [first + node for node in path[request, :count].tolist()] + rest
        assert destination[request].tolist() == [first + place for place in range(count)] + rest
