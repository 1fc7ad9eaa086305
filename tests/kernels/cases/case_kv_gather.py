"""The Triton kernel of the gather through every test of the gather, on memory that held something else."""

import pytest
import torch
from bodies import fill_new_memory
from cache_layouts import Layout, halves, token_major
from test_kv_compaction import caches
from test_kv_gather import *  # noqa: F403
from test_kv_gather import Gather

from vllm_specext.kernels.kv_gather import kernel
from vllm_specext.kernels.pointers import Caches


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Gather:
    fill_new_memory(monkeypatch)
    return lambda views, slots: kernel.gather(Caches(views), slots)


@pytest.fixture(params=[halves, token_major])
def layout(request: pytest.FixtureRequest) -> Layout:
    """A GPU's."""
    return request.param


@pytest.mark.parametrize(
    "views",
    [
        pytest.param([*caches(halves, torch.float32), *caches(halves, torch.float32, (3,))], id="heads"),
        pytest.param([*caches(halves, torch.float32), *caches(halves, torch.bfloat16)], id="data type"),
        pytest.param(caches(halves, torch.float32)[:3], id="a key without a value"),
    ],
)
def test_layers_that_differ_are_refused(run: Gather, views: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="must have the same heads, width and data type"):
        run(views, torch.zeros(1, dtype=torch.int64))
