"""The Triton kernel of KV slots through every test of KV slots, on memory that held something else."""

from typing import Any

import pytest
from bodies import fill_new_memory
from test_kv_slots import *  # noqa: F403
from test_kv_slots import KVSlots

from vllm_specext.kernels.kv_slots import kernel


@pytest.fixture
def kv_slots(monkeypatch: pytest.MonkeyPatch) -> KVSlots:
    fill_new_memory(monkeypatch)

    def run(table: Any, slots: Any, written: Any, page_size: int, limit: int) -> Any:
        return kernel.kv_slots(table, slots, written.expand(slots.shape), page_size, limit)

    return run
