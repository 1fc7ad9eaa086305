"""The gated delta rule takes a round for each level of a step's drafts, and not for each that drafts may have."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vllm_specext.engine.verification.recurrent_trees import RecurrentChains, RecurrentTrees
from vllm_specext.kernels.recurrent import TreeRows
from vllm_specext.tree.topology import Topology

MOST = 32


class Layers:
    """Layers that know of drafts of up to so many levels, and keep what they are told."""

    taps, levels = 4, MOST

    def attach(self, metadata: dict[str, Any], rows: TreeRows, batch: Any, new: np.ndarray) -> None:
        self.rows = rows


@pytest.mark.parametrize(
    ("captured", "levels", "query", "expected"),
    [(False, 6, 25, 6), (False, MOST, 25, 24), (False, 6, 5, 4), (True, 6, 25, 24), (True, 6, 60, MOST)],
)
def test_trees_have_the_levels_of_their_step_but_for_a_graph(
    captured: bool, levels: int, query: int, expected: int
) -> None:
    layers: Any = Layers()
    layout: Any = SimpleNamespace(
        requests=2, query=query, levels=levels, rows=2 * query, starts=torch.tensor([0, query, 2 * query]),
        visible=Topology.chain(2, query - 1, torch.device("cpu")).ancestors,
        chain_positions=None if captured else torch.zeros(1),
    )  # fmt: skip
    batch: Any = SimpleNamespace(num_computed_tokens_np=np.ones(2))
    RecurrentTrees(layers, 2, 60, torch.device("cpu")).begin(batch, {}, layout)
    assert layers.rows.levels == expected


def test_chains_have_the_levels_of_the_longest() -> None:
    layers: Any = Layers()
    batch: Any = SimpleNamespace(
        num_draft_tokens_per_req=np.array([4, 2]), num_scheduled_tokens=np.array([5, 3]),
        query_start_loc=torch.tensor([0, 5, 8]), query_start_loc_np=np.array([0, 5, 8]),
        num_computed_tokens_np=np.ones(2),
    )  # fmt: skip
    RecurrentChains(layers, 2, MOST + 1, torch.device("cpu")).begin({}, batch, for_capture=False)
    assert layers.rows.levels == 4
