"""Which verified drafts the sharpness of trees is learned from."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vllm_specext.engine.drafting import calibrated
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.topology import Topology

NODES, SLOTS = 6, [3, 0, 2]


def trees(is_chain: list[bool], expects: bool = True) -> TreeStates:
    """Just drafted for the requests in ``SLOTS``."""
    made = TreeStates(TreeShape(NODES, 3, 2), 4, 64, torch.device("cpu"))
    topology = Topology.chain(len(SLOTS), NODES, "cpu")
    expected = torch.tensor([1.0, 2.0, 3.0]) if expects else None
    made.write(torch.tensor(SLOTS), np.array(SLOTS), topology, np.array(is_chain), expected=expected)
    return made


def learned_from(monkeypatch: pytest.MonkeyPatch, states: TreeStates, drafted: Any, dummy: bool = False) -> list[float]:
    """What was expected of the trees that count, where the first requests verified so many ``drafted`` tokens."""
    found: list[float] = []

    def calibrate(learned: Any, slots: Any, heat: Any, expected: Any, sampled: Any, verified: int, counts: Any) -> Any:
        weights = torch.ones(verified) if counts is None else counts
        found.extend(expected[slots[:verified]][weights.bool()].tolist())

    monkeypatch.setattr(calibrated, "calibrate", calibrate)
    batch = SimpleNamespace(
        idx_mapping=torch.tensor(SLOTS),
        idx_mapping_np=np.array(SLOTS),
        num_draft_tokens_per_req=None if drafted is None else np.array(drafted, dtype=np.int32),
    )
    step: Any = SimpleNamespace(batch=batch, dummy=dummy, temperature=torch.zeros(4), num_sampled=torch.ones(3))
    calibrated.CalibratedTrees(torch.device("cpu")).sharpness(step, states)
    return found


def test_whole_trees_count(monkeypatch: pytest.MonkeyPatch) -> None:
    states = trees([False] * 3)
    assert learned_from(monkeypatch, states, [NODES] * 3) == [1, 2, 3]
    assert learned_from(monkeypatch, states, [NODES, NODES, 0]) == [1, 2]


def test_cut_trees_and_chains_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learned_from(monkeypatch, trees([False] * 3), [NODES, NODES - 1, NODES]) == [1, 3]
    assert learned_from(monkeypatch, trees([False, True, False]), [NODES] * 3) == [1, 3]
    assert learned_from(monkeypatch, trees([True] * 3), [NODES] * 3) == []


def test_nothing_counts_where_nobody_has_said_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learned_from(monkeypatch, trees([False] * 3, expects=False), [NODES] * 3) == []
    states = trees([False] * 3)
    states.write(torch.tensor([0]), np.array([0]), Topology.chain(1, NODES, "cpu"), False)  # a client's tree
    assert learned_from(monkeypatch, states, [NODES] * 3) == [1, 3]


def test_steps_without_drafts_or_requests_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learned_from(monkeypatch, trees([False] * 3), None) == []
    assert learned_from(monkeypatch, trees([False] * 3), [NODES] * 3, dummy=True) == []
