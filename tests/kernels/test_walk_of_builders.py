"""The verification walks on the drafts of every builder of trees, padding and cut trees included.

Every test here runs in torch and in C++, with the Triton kernels on a GPU, and with these under Triton's interpreter
(``cases/case_walk_of_builders.py``).
"""

import pytest
import torch
from test_tree_walk import Walk, walks  # noqa: F401 - a fixture
from torch import Tensor
from tree_builders import BUILDERS, SHAPE, VOCABULARY, Draft, states

from vllm_specext.engine.verification.tree_states import TreeStates

REQUESTS = 100
TREES = 10_000
"""Of each builder."""


def drawn_path(draft: Draft, parents: list[list[int]], request: int, drawn: list[int]) -> list[int]:
    """What a plain loop accepts of a request's own nodes, of which the scheduler took the first ``len(drawn) - 1``."""
    own = min(draft.num_nodes[request], len(drawn) - 1)
    tokens, path = [-1, *draft.tokens[request].tolist()], [0]
    while True:
        at = path[-1]
        children = [n for n in range(1, own + 1) if parents[request][n] == at and tokens[n] == drawn[at]]
        assert len(children) <= 1, "siblings hold the same token"
        if not children:
            return path
        path += children


def verify(walk: Walk, trees: TreeStates, draft: Draft, random: torch.Generator) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The walk's counts and paths, with rows for all of a tree or a part of it, and what was drawn at the rows."""
    requests, nodes = draft.tokens.shape
    lengths = torch.randint(1, nodes + 2, (requests,), generator=random)
    lengths[::3] = nodes + 1
    drawn = [torch.randint(VOCABULARY, (int(length),), generator=random) for length in lengths]
    drafted = [torch.cat((torch.tensor([-7]), row[: int(n) - 1])) for row, n in zip(draft.tokens, lengths, strict=True)]
    bounds = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).to(torch.int32)
    _, counts, path = walk(
        torch.cat(drawn), torch.cat(drafted), bounds, trees.topology.parents.contiguous(), trees.shape.depth
    )
    return counts, path, drawn


def differing(walk: Walk, name: str, rounds: int) -> int:
    """Requests whose path is not that of the plain loop. The slots hold what was drafted before as well."""
    random = torch.Generator().manual_seed(1)
    trees, wrong = states(REQUESTS), 0
    for _ in range(rounds):
        nodes = int(torch.randint(1, SHAPE.nodes + 1, (1,), generator=random))
        draft = BUILDERS[name](trees, random, nodes)
        counts, paths, drawn = verify(walk, trees, draft, random)
        parents = trees.topology.parents.tolist()
        for request, (count, path) in enumerate(zip(counts.tolist(), paths.tolist(), strict=True)):
            expected = drawn_path(draft, parents, request, drawn[request].tolist())
            wrong += path != expected + [0] * (len(path) - len(expected)) or count != len(expected)
    return wrong


@pytest.mark.parametrize("name", BUILDERS)
def test_a_walk_accepts_what_a_plain_loop_accepts_of_the_nodes_that_were_drafted(
    walks: tuple[Walk, Walk],  # noqa: F811
    name: str,
) -> None:
    assert differing(walks[0], name, TREES // REQUESTS) == 0


@pytest.mark.parametrize("name", ["chains", "swift"])
def test_padding_below_a_node_that_was_drafted_would_be_accepted(
    walks: tuple[Walk, Walk],  # noqa: F811
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test above can fail: the draws say token 0 often enough. (A chain from a tree is as long as walks go.)"""
    from vllm_specext.tree.topology import Topology

    monkeypatch.setattr(Topology, "padded_after", lambda self, num_nodes: self)
    rounds = min(10, TREES // REQUESTS)
    assert differing(walks[0], name, rounds) > rounds
