"""What a client's drafter must know of a verified token: the key and the value of its cross-attention.

The server's drafter has them in its cache anyway. A row is sent as float16, or as int8 with a float16 scale for each
head of the keys and of the values: symmetric, the largest value of a head being 127. With ``H`` heads of size ``D`` a
row has ``4 H D`` bytes, or ``2 H D + 4 H``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.remote.protocol import MalformedError

LARGEST = 127
INT8, FLOAT16 = "int8", "float16"


@dataclass(frozen=True)
class RowFormat:
    heads: int
    head_size: int
    kind: str
    """``INT8`` or ``FLOAT16``."""

    @property
    def size(self) -> int:
        """Bytes of a row."""
        values = 2 * self.heads * self.head_size
        return values + 2 * 2 * self.heads if self.kind == INT8 else 2 * values

    def pack(self, keys: Tensor, values: Tensor) -> Tensor:
        """``[T, size]`` uint8 on the device of the ``keys`` and ``values`` ``[T, H, D]``, of any floating type."""
        rows = torch.stack((keys, values), dim=1).float()
        if self.kind == FLOAT16:
            return rows.half().flatten(1).contiguous().view(torch.uint8)
        scales = (rows.abs().amax(dim=-1) / LARGEST).half()
        # A scale that float16 rounds down would let the largest value be 128.
        steps = torch.where(scales > 0, scales.float(), 1).unsqueeze(-1)
        numbers = (rows / steps).round().clamp(-LARGEST, LARGEST).to(torch.int8)
        return torch.cat([part.flatten(1).contiguous().view(torch.uint8) for part in (numbers, scales)], dim=1)

    def unpack(self, packed: bytes) -> tuple[Tensor, Tensor]:
        """Keys and values ``[T, H, D]`` float32.

        Raises ``MalformedError`` where the bytes are not whole rows, or not finite numbers.
        """
        if len(packed) % self.size:
            raise MalformedError(f"rows have {len(packed)} bytes; each has {self.size}.")
        if not packed:
            return torch.empty(0, self.heads, self.head_size), torch.empty(0, self.heads, self.head_size)
        rows = torch.frombuffer(bytearray(packed), dtype=torch.uint8).view(-1, self.size)
        shape = (len(rows), 2, self.heads, self.head_size)
        if self.kind == FLOAT16:
            made = rows.view(torch.float16).float().view(shape)
        else:
            cut = 2 * self.heads * self.head_size
            scales = rows[:, cut:].contiguous().view(torch.float16).float().view(shape[:3])
            made = rows[:, :cut].contiguous().view(torch.int8).float().view(shape) * scales.unsqueeze(-1)
        if not made.isfinite().all():
            raise MalformedError("rows hold NaN or an infinity; all must be finite numbers.")
        return made[:, 0], made[:, 1]
