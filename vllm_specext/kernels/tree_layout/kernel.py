"""The layout in Triton: a program for each request."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.tree.topology import Topology


@triton.jit(do_not_specialize=["nodes", "last_position"])
def _lay_out_kernel(
    slots_ptr, starts_ptr, seq_lens_ptr, prefill_lens_ptr, depths_ptr, ancestors_ptr, causal_ptr,
    positions_ptr, chain_ptr, prefix_lens_ptr, visible_ptr,
    stride_depths, stride_ancestors, stride_visible, nodes, last_position,
    WORDS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Grid ``requests``; ``nodes`` with the root."""
    request = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + request).to(tl.int64)
    start = tl.load(starts_ptr + request).to(tl.int64)
    count = tl.load(starts_ptr + request + 1) - start
    prefix = tl.load(seq_lens_ptr + request) - count
    has_draft = prefix >= tl.load(prefill_lens_ptr + slot)
    tl.store(prefix_lens_ptr + request, prefix.to(tl.int32))

    node = tl.arange(0, BLOCK_N)
    own = node < count
    chain = tl.load(positions_ptr + start + node, mask=own, other=0)
    depth = tl.load(depths_ptr + slot * stride_depths + node, mask=own & has_draft, other=0)
    by_depth = tl.where(has_draft, chain + depth - node, chain)
    tl.store(chain_ptr + start + node, chain, mask=own)
    tl.store(positions_ptr + start + node, tl.minimum(by_depth, last_position), mask=own)

    word = tl.arange(0, BLOCK_W)
    place = node[:, None] * WORDS + word[None, :]
    inside = (node < nodes)[:, None] & (word < WORDS)[None, :]
    drafted = tl.load(ancestors_ptr + slot * stride_ancestors + place, mask=inside & has_draft, other=0)
    causal = tl.load(causal_ptr + place, mask=inside & (has_draft == 0), other=0)
    tl.store(visible_ptr + request * stride_visible + place, drafted | causal, mask=inside)


@triton.jit
def _accepted_rows_kernel(
    starts_ptr, path_ptr, accepted_ptr, source_ptr, destination_ptr,
    stride_path, LENGTH: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Grid ``requests``."""
    request = tl.program_id(0).to(tl.int64)
    start = tl.load(starts_ptr + request).to(tl.int64)
    place = tl.arange(0, BLOCK_L)
    on_path = place < tl.load(accepted_ptr + request)
    node = tl.load(path_ptr + request * stride_path + place, mask=on_path & (place < LENGTH), other=0)
    tl.store(source_ptr + request * LENGTH + place, start + node, mask=place < LENGTH)
    tl.store(destination_ptr + request * LENGTH + place, start + tl.where(on_path, place, 0), mask=place < LENGTH)


def lay_out(
    slots: Tensor,
    starts: Tensor,
    seq_lens: Tensor,
    prefill_lens: Tensor,
    trees: Topology,
    causal: Tensor,
    positions: Tensor,
    last_position: int,
    prefix_lens: Tensor,
    visible: Tensor,
) -> Tensor:
    nodes, words = causal.shape
    chain = torch.empty_like(positions)
    _lay_out_kernel[len(slots),](
        slots, starts, seq_lens, prefill_lens, trees.depths, trees.ancestors, causal,
        positions, chain, prefix_lens, visible,
        trees.depths.stride(0), trees.ancestors.stride(0), visible.stride(0), nodes, last_position,
        WORDS=words, BLOCK_N=triton.next_power_of_2(nodes), BLOCK_W=triton.next_power_of_2(words), num_warps=1,
    )  # fmt: skip
    return chain


def accepted_rows(starts: Tensor, path: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
    requests, length = path.shape
    source = torch.empty(requests, length, dtype=torch.int64, device=path.device)
    # Not the second half of one tensor: where that is aligned to less, Triton compiles another variant.
    destination = torch.empty_like(source)
    _accepted_rows_kernel[requests,](
        starts, path, accepted, source, destination, path.stride(0),
        LENGTH=length, BLOCK_L=triton.next_power_of_2(length), num_warps=1,
    )  # fmt: skip
    return source, destination
