"""The KV slots of rows in torch."""

import torch
from torch import Tensor

NOWHERE = -1
"""The slot of rows whose keys and values are not kept, as vLLM has it (``PAD_SLOT_ID``)."""


def kv_slots(block_table: Tensor, slots: Tensor, written: Tensor, page_size: int, limit: int) -> Tensor:
    page = block_table.gather(1, (slots // page_size).clamp(max=block_table.shape[1] - 1)).long()
    found = page * page_size + slots % page_size
    return torch.where(written & (slots < limit), found, NOWHERE).flatten()
