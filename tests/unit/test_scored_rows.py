"""Logprobs are made of as many rows as a draft of the step may have, and not of as many as any draft may."""

from typing import Any

import numpy as np
import torch

from vllm_specext.engine.verification.sampler import TreeVerifier


def test_paths_are_cut_to_the_longest_draft_of_the_step() -> None:
    verifier: Any = TreeVerifier.__new__(TreeVerifier)
    path = torch.tensor([[0, 2, 4, 0, 0, 0], [0, 1, 0, 0, 0, 0]])  # of six rows at the most
    verifier._walked, verifier._width = [(path, torch.tensor([3, 2]))], 3
    starts = np.array([0, 5, 7])
    rows, firsts = verifier.scored_rows(torch.from_numpy(starts), starts)
    assert rows.tolist() == [0, 2, 4, 5, 6, 5]
    assert firsts == [0, 3, 6]
