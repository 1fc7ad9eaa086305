"""Steps over the drafts of every builder of trees: rows of logits at their nodes, and the text of their requests."""

from typing import NamedTuple

import torch
from torch import Tensor
from tree_builders import BUILDERS, SHAPE, states

from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.kernels.path_text.rows import Paths, Said

REQUESTS, SLOTS, VOCABULARY, LENGTH = 6, 6, 4200, 40
"""A row takes two programs of the kernel."""
ALPHABET = 2
"""Different tokens of the text and of bad words, which drafts have too, so that they are there again and again."""


class Step(NamedTuple):
    """Rows of logits at the nodes of trees, and the text of their requests."""

    logits: Tensor
    paths: Paths
    said: Said
    own: list[int]
    """Nodes of each request that are no padding."""
    rows: list[tuple[int, int]]
    """Request and node of each row."""

    def drafted(self, row: int) -> list[int]:
        """The tokens of the path to a row's node, the root's child first."""
        request, node = self.rows[row]
        found = []
        while node:
            found.insert(0, int(self.paths.tokens[row - self.rows[row][1] + node]))
            node = int(self.paths.parents[request, node])
        return found

    @property
    def counted(self) -> list[int]:
        """Rows that are no padding."""
        return [row for row, (request, node) in enumerate(self.rows) if node <= self.own[request]]

    def answer(self, request: int) -> list[int]:
        _, first, total = (tensor[request].tolist() for tensor in self.said)
        answer: list[int] = self.said.tokens[request, first:total].tolist()
        return answer


def step(name: str, seed: int, trees: TreeStates | None = None) -> Step:
    """The drafts of a builder, with one request that has none."""
    generator = torch.Generator().manual_seed(seed)
    trees = states(REQUESTS) if trees is None else trees
    draft = BUILDERS[name](trees, generator, int(torch.randint(1, SHAPE.nodes + 1, (1,), generator=generator)))
    nodes = draft.tokens.shape[1]
    counts = [0, *[nodes] * (REQUESTS - 1)]
    rows = [(request, node) for request in range(REQUESTS) for node in range(counts[request] + 1)]
    tokens = torch.tensor([int(draft.tokens[request, node - 1]) if node else 1 for request, node in rows])
    slots, places = torch.tensor(rows, dtype=torch.int32).T
    text = torch.randint(ALPHABET, (SLOTS, LENGTH), generator=generator, dtype=torch.int32)
    prompt_lens = torch.randint(1, 20, (SLOTS,), generator=generator, dtype=torch.int32)
    total_lens = prompt_lens + torch.randint(0, 6, (SLOTS,), generator=generator, dtype=torch.int32)
    paths = Paths(slots.contiguous(), places.contiguous(), tokens.int(), trees.topology.parents, trees.levels)
    logits = torch.randn(len(rows), VOCABULARY, generator=generator)
    return Step(logits, paths, Said(text, prompt_lens, total_lens), draft.num_nodes, rows)
