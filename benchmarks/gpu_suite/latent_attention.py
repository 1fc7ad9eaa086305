"""The part ``latent_attention``: tree attention over latent caches (MLA) beside FlashAttention 3's causal kernel on as
many rows, with the heads of DeepSeek V3 on one GPU and on each of eight.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_suite.attention import TOLERANCE, difference, measured
from benchmarks.gpu_suite.attention_peers import flash_attention_3
from benchmarks.gpu_suite.attention_problem import random_trees
from benchmarks.gpu_suite.ceilings import Work
from benchmarks.gpu_suite.timing import DEVICE, copies_for
from vllm_specext.kernels.tree_attention import TreeRows, naive, tree_attention

LATENT, ROPE, PAGE_SIZE = 512, 64, 16
SCALE = (128 + ROPE) ** -0.5
"""Of scores, as the keys were before they were absorbed."""


@dataclass(frozen=True)
class Shape:
    requests: int
    context: int
    nodes: int
    """Without the root."""
    heads: int

    @property
    def slots(self) -> int:
        """Of one request, its nodes and their root included."""
        return self.context + self.nodes + 1

    @property
    def work(self) -> Work:
        """Latent vectors are read once for both products."""
        rows = self.requests * (self.nodes + 1) * self.heads
        numbers = self.requests * self.slots * (LATENT + ROPE) + rows * (2 * LATENT + ROPE)
        return Work(2 * numbers, 2 * rows * self.slots * (2 * LATENT + ROPE))


SHAPES = tuple(
    Shape(requests, context, nodes, heads)
    for heads, context, (requests, nodes) in product((16, 128), (8192, 32768), ((1, 59), (4, 31), (16, 15)))
)


class Problem:
    def __init__(self, shape: Shape, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> None:
        self.shape = shape
        random = torch.Generator().manual_seed(shape.context + shape.requests + seed)
        width, pages = shape.nodes + 1, -(-shape.slots // PAGE_SIZE)
        sizes = (shape.requests * pages, PAGE_SIZE, LATENT + ROPE)
        self.cache = torch.empty(sizes, dtype=dtype, device=DEVICE).normal_()
        table = torch.randperm(sizes[0], generator=random).view(shape.requests, pages)
        rows = shape.requests * width
        self.query = torch.empty(rows, shape.heads, LATENT + ROPE, dtype=dtype, device=DEVICE).normal_()
        self.rows = TreeRows(
            block_table=table.to(DEVICE, torch.int32),
            query_start_loc=torch.arange(0, rows + 1, width, dtype=torch.int32, device=DEVICE),
            prefix_lens=torch.full((shape.requests,), shape.context, dtype=torch.int32, device=DEVICE),
            visible=random_trees(shape.requests, shape.nodes, random).ancestors.to(DEVICE),
            num_rows=rows,
            max_query_len=width,
            num_nodes=width,
            max_seq_len=shape.slots,
        )

    @property
    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        keys = self.cache.unsqueeze(1)
        return keys, keys[..., :LATENT]

    def new(self) -> Tensor:
        return self.query.new_full((*self.query.shape[:2], LATENT), torch.nan)


def ours(problem: Problem) -> Callable[[], Tensor]:
    out = problem.new()

    def call() -> Tensor:
        tree_attention(problem.query, *problem.keys_and_values, problem.rows, out, scale=SCALE)
        return out

    return call


def causal(problem: Problem) -> Callable[[], Tensor]:
    """What vLLM's FLASH_ATTN_MLA calls, for a chain of as many rows. The division among processors, which vLLM works
    out before the step, is left to the kernel."""
    attend = flash_attention_3()
    rotary = problem.query[..., LATENT:].contiguous()
    latent = problem.query[..., :LATENT].contiguous()
    lens = problem.rows.prefix_lens + problem.rows.max_query_len

    def call() -> Tensor:
        result: Tensor = attend(
            q=rotary,
            k=problem.cache[..., LATENT:].unsqueeze(-2),
            v=problem.cache[..., :LATENT].unsqueeze(-2),
            q_v=latent,
            max_seqlen_q=problem.rows.max_query_len,
            cu_seqlens_q=problem.rows.query_start_loc,
            max_seqlen_k=problem.rows.max_seq_len,
            seqused_k=lens,
            block_table=problem.rows.block_table,
            softmax_scale=SCALE,
            causal=True,
            fa_version=3,
        )
        return result

    return call


def expected(problem: Problem) -> Tensor:
    """By torch."""
    out = problem.new()
    how: dict[str, Any] = {"scale": SCALE, "soft_cap": 0.0, "sliding_window": 0}
    naive.tree_attention(problem.query, *problem.keys_and_values, problem.rows.plan, out, **how)
    return out


def rows(shapes: Iterable[Shape] = SHAPES) -> Iterator[dict[str, Any]]:
    for shape in shapes:
        problems = [Problem(shape, seed=copy) for copy in range(copies_for(shape.work.bytes))]
        sizes = {**vars(shape), "rows": shape.nodes + 1}
        peer, _ = measured({"implementation": "FlashAttention 3 causal", **sizes}, causal, problems, shape.work)
        row, result = measured({"implementation": "ours", **sizes}, ours, problems, shape.work)
        if result is not None:
            row["difference"] = difference(result, expected(problems[0]))
            row["wrong"] = not row["difference"] <= TOLERANCE
            if "us" in peer:
                row["ratio_to_causal"] = round(row["us"] / peer["us"], 3)
        yield from (peer, row)
