"""The newest tokens of a step's texts: read in place and copied they are the same."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vllm_specext.engine.drafting.new_tokens import copied, new_tokens, read_in_place

MOST = 4


def step(random: torch.Generator) -> Any:
    """Five requests in slots of their own, of which some decided nothing."""
    slots = torch.randperm(8, generator=random)[:5]
    lengths = torch.randint(1, 29, (5,), generator=random)
    rejected = torch.randint(0, 3, (6,), generator=random).int()
    return SimpleNamespace(
        requests=5,
        num_sampled=torch.randint(0, MOST + 1, (6,), generator=random).int(),
        num_rejected=rejected,
        lengths=lambda: lengths,
        batch=SimpleNamespace(idx_mapping=slots, idx_mapping_np=slots.numpy(), seq_lens=lengths + rejected[:5]),
    )


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_tell_the_same(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 99, (8, 32), generator=random).int()
    made = step(random)
    in_place, by_copy = read_in_place(made, ids), copied(made, ids, MOST)
    assert np.array_equal(in_place.decided, by_copy.decided)
    assert np.array_equal(in_place.lengths, by_copy.lengths)
    for place in range(5):
        length, slot = int(in_place.lengths[place]), int(made.batch.idx_mapping_np[place])
        # What a step adds, nothing, and more than one step can add.
        for known in {max(length - 1, 0), max(length - MOST, 0), length, 0}:
            expected = ids[slot, known:length].tolist()
            assert in_place.after(place, known) == by_copy.after(place, known) == expected


def test_on_a_cpu_nothing_is_copied() -> None:
    random = torch.Generator().manual_seed(0)
    assert new_tokens(step(random), torch.zeros(8, 32), MOST)._newest is None
