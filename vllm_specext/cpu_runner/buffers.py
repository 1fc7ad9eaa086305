"""Bodies for ``v1/worker/gpu/buffer_utils.py``: staged writes into request-indexed tensors."""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vllm_specext.cpu_runner.ragged import rows_and_offsets
from vllm_specext.engine.changes.replacements import replaces


def apply_write(
    output: torch.Tensor,
    output_stride: int,
    write_indices: torch.Tensor,
    write_starts: torch.Tensor,
    write_contents: torch.Tensor,
    write_cu_lens: torch.Tensor,
    write_group_ids: torch.Tensor | None,
    BLOCK_SIZE: int,
    MULTI_GROUP: bool,
) -> None:
    """Write ``contents[cu[i-1]:cu[i]]`` to row ``indices[i]`` of `output` (`[N]` or `[N, M]`), at ``starts[i]``."""
    ends = write_cu_lens.numpy()
    lengths = ends.copy()
    lengths[1:] -= ends[:-1]
    row, offset = rows_and_offsets(lengths)
    first = write_indices.numpy().astype("int64") * output_stride + write_starts.numpy()
    output.view(-1).numpy()[first[row] + offset] = write_contents.numpy()[: len(row)]


@replaces(
    "vllm.v1.worker.gpu.buffer_utils.FusedStagedWriter.apply",
    name="staged writes on a CPU",
    why="a launch shows only addresses in a table of raw pointers, not the tensors that they point to",
    how="replaced by a body in torch, only where V2 runs on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="self tensors output_ptrs output_strides",
)
def apply_fused(self: Any, tensors: Sequence[Any], output_ptrs: torch.Tensor, output_strides: torch.Tensor) -> None:
    """Replaces ``FusedStagedWriter.apply``, whose kernel reads a table of raw pointers.

    Fusing saves launches; without launches the tensors are simply written one after the other.
    """
    for tensor in tensors:
        tensor.apply_write()
