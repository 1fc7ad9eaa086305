"""The Triton kernel of KV compaction through every test of KV compaction."""

import pytest
from cache_layouts import Layout, halves, token_major
from test_kv_compaction import *  # noqa: F403
from test_kv_compaction import Compact

from vllm_specext.kernels.kv_compaction import kernel
from vllm_specext.kernels.pointers import Caches


@pytest.fixture
def run() -> Compact:
    return lambda views, source, destination: kernel.compact(Caches(views), source, destination)


@pytest.fixture(params=[halves, token_major])
def layout(request: pytest.FixtureRequest) -> Layout:
    """A GPU's."""
    return request.param
