"""The verification walks in Triton: a program for each request, which reads its rows at once and then only compares."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["nodes"])
def _accept_tree_kernel(
    drawn_ptr, drafted_ptr, starts_ptr, parents_ptr, emitted_ptr, num_sampled_ptr, path_ptr,
    stride_parents, stride_parents_node, nodes,
    LEVELS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Grid ``requests``; ``nodes`` with the root."""
    request = tl.program_id(0).to(tl.int64)
    start = tl.load(starts_ptr + request).to(tl.int64)
    count = tl.load(starts_ptr + request + 1) - start
    node = tl.arange(0, BLOCK_N)
    inside = (node > 0) & (node < count) & (node < nodes)
    parent = tl.load(parents_ptr + request * stride_parents + node * stride_parents_node, mask=inside, other=0)
    drafted = tl.load(drafted_ptr + start + node, mask=inside, other=0)
    confirmed = inside & (drafted == tl.load(drawn_ptr + start + parent, mask=inside, other=0))
    step = tl.arange(0, BLOCK_L)
    path = tl.zeros([BLOCK_L], tl.int32)
    current = 0
    accepted = 1
    for place in range(1, LEVELS + 1):
        # Siblings hold distinct tokens, so it is one child or none; after the end nothing is a child of -1.
        current = tl.max(tl.where(confirmed & (parent == current), node, -1), 0)
        path = tl.where((step == place) & (current > 0), current, path)
        accepted += (current > 0).to(tl.int32)
    stored = step <= LEVELS
    emitted = tl.load(drawn_ptr + start + path, mask=stored)
    tl.store(emitted_ptr + request * (LEVELS + 1) + step, emitted, mask=stored)
    tl.store(path_ptr + request * (LEVELS + 1) + step, path, mask=stored)
    tl.store(num_sampled_ptr + request, accepted)


@triton.jit
def _accept_chain_kernel(
    drawn_ptr, drafted_ptr, starts_ptr, emitted_ptr, num_sampled_ptr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Grid ``requests``."""
    request = tl.program_id(0).to(tl.int64)
    start = tl.load(starts_ptr + request).to(tl.int64)
    count = tl.load(starts_ptr + request + 1) - start
    row = tl.arange(0, BLOCK_N)
    drawn = tl.load(drawn_ptr + start + row, mask=row < count, other=0)
    follows = row + 1 < tl.minimum(count, WIDTH)
    continues = follows & (tl.load(drafted_ptr + start + row + 1, mask=follows, other=0) == drawn)
    tl.store(emitted_ptr + request * WIDTH + row, drawn, mask=row < WIDTH)
    tl.store(num_sampled_ptr + request, 1 + tl.min(tl.where(continues, BLOCK_N, row), 0))


def accept_tree(
    drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, parents: Tensor, levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    requests, nodes = parents.shape
    emitted, path = drawn.new_empty(requests, levels + 1), parents.new_empty(requests, levels + 1)
    num_sampled = torch.empty(requests, dtype=torch.int32, device=drawn.device)
    _accept_tree_kernel[requests,](
        drawn, drafted, cu_num_logits, parents, emitted, num_sampled, path, *parents.stride(), nodes,
        LEVELS=levels, BLOCK_N=triton.next_power_of_2(nodes), BLOCK_L=triton.next_power_of_2(levels + 1), num_warps=1,
    )  # fmt: skip
    return emitted, num_sampled, path


def accept_chain(drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Walk each request's chain; the emitted tokens after a request's rows are 0."""
    requests = cu_num_logits.shape[0] - 1
    emitted = drawn.new_empty(requests, width)
    num_sampled = torch.empty(requests, dtype=torch.int32, device=drawn.device)
    _accept_chain_kernel[requests,](
        drawn, drafted, cu_num_logits, emitted, num_sampled,
        WIDTH=width, BLOCK_N=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
    return emitted, num_sampled
