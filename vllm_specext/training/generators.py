"""Random generators that follow from numbers, in every process the same."""

import random

import torch


def generator(*numbers: int) -> torch.Generator:
    """One for these ``numbers``, such as a seed and the number of a batch. Torch itself looks at 32 bits of a seed."""
    return torch.Generator().manual_seed(random.Random(" ".join(map(str, numbers))).getrandbits(32))
