"""Property tests without a deadline for each example, because a busy machine is not a failure; and the published
drafter."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from tests.unit.oracle import load, shape_of
from vllm_specext.methods.griffin.model import GriffinDrafter

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return load()["case1"]


@pytest.fixture
def drafter(oracle: dict[str, Any]) -> GriffinDrafter:
    model = GriffinDrafter(shape_of(oracle["config"]))
    model.load_state_dict(oracle["state_dict"], strict=True)
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums are the same for the same number of threads only."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
