"""The KV slots of rows in C++ on a CPU."""

import torch
from torch import Tensor

from vllm_specext.kernels.native.operators import BYTE, LONG, WORD, Operator

KV_SLOTS = Operator(
    "kv_slots", {"block_table": WORD, "slots": LONG, "written": BYTE, "out": LONG}, "int page_size, int limit"
)


def takes(block_table: Tensor, slots: Tensor) -> bool:
    return KV_SLOTS.takes(block_table, slots)


def kv_slots(block_table: Tensor, slots: Tensor, written: Tensor, page_size: int, limit: int) -> Tensor:
    out = torch.empty(slots.numel(), dtype=torch.int64, device=slots.device)
    KV_SLOTS.overload(block_table, slots, written.view(torch.uint8), out, page_size, limit)
    return out
