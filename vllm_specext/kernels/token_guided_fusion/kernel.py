"""Token-guided fusion in Triton: the three matrix products read each weight once, and between them only rows of
activations are written.

1. ``_product_kernel``: ``fc`` over its two halves, the embeddings straight out of the table.
2. ``_norm_kernel``: its sum and bias, the two norms of the hidden state and the embedding's norm, written side by side
   as the next product reads them: rows of a few KiB are cheaper to write once than to normalise again in each of the
   hundreds of programs that multiply them.
3. ``_product_kernel``: ``up``, and SiLU.
4. ``_product_kernel``: ``down``, and the residual.

A product whose tiles are too few to keep the memory busy is split along its inner dimension. The parts are added by
another kernel in a fixed order, so that a run gives the same bits as the run before.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.kernels.token_guided_fusion.naive import FusionWeights


class Tile(NamedTuple):
    rows: int
    columns: int
    depth_bytes: int
    stages: int
    warps: int


# By the most rows they are for. Not measured. At most 96 KiB of shared memory: within what every GPU since Ampere has.
TILES = (
    (16, Tile(16, 64, 256, stages=4, warps=4)),
    (32, Tile(32, 64, 256, stages=4, warps=4)),
    (64, Tile(64, 64, 128, stages=4, warps=4)),
)
LARGEST = Tile(128, 128, 128, stages=3, warps=8)
PROGRAMS_PER_PROCESSOR = 2
MIN_DEPTH = 4  # tiles of the inner dimension that a part has at least: the loads of as many are under way at once
MAX_SPLITS = 8
SUMMED = 1024  # elements per program where parts are added


@triton.jit
def _multiply(acc, row_ptr, own, weight_ptr, stored, first, last, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr):
    """Add tiles ``first`` to ``last`` of the product of ``[M, WIDTH]`` and the transpose of ``[N, WIDTH]``."""
    for tile in range(first, last):
        column = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = column < WIDTH
        row = tl.load(row_ptr[:, None] + column[None, :], mask=own[:, None] & inside[None, :], other=0.0)
        weight = tl.load(weight_ptr[None, :] + column[:, None], mask=inside[:, None] & stored[None, :], other=0.0)
        # "ieee" is for float32, which tensor cores would cut to 10 bits of mantissa.
        acc = tl.dot(row, weight, acc, input_precision="ieee")
    return acc


@triton.jit
def _embedding(table_ptr, ids_ptr, row, own, num_embeddings, stride, GATHER: tl.constexpr):
    """Pointers to the embeddings of rows, and which of them may be read."""
    if GATHER:
        row = tl.load(ids_ptr + row, mask=own, other=0).to(tl.int64)
        own = own & (row >= 0) & (row < num_embeddings)
    return table_ptr + row * stride, own


@triton.jit
def _finish(total, residual_ptr, at, mask, DTYPE: tl.constexpr, SILU: tl.constexpr, RESIDUAL: tl.constexpr):
    """Apply what follows a product, rounding after every step."""
    out = total.to(DTYPE)
    if SILU:
        wide = out.to(tl.float32)
        out = (wide * tl.sigmoid(wide)).to(DTYPE)
    if RESIDUAL:
        residual = tl.load(residual_ptr + at, mask=mask, other=0.0)
        out = (out.to(tl.float32) + residual.to(tl.float32)).to(DTYPE)
    return out


@triton.jit(do_not_specialize=["num_rows", "num_embeddings"])
def _product_kernel(
    first_ptr, ids_ptr, second_ptr, weight_ptr, residual_ptr, out_ptr,
    num_rows, num_embeddings, stride_first, stride_second, stride_weight,
    OUT: tl.constexpr, WIDTH: tl.constexpr, GATHER: tl.constexpr, HALVES: tl.constexpr,
    PARTIAL: tl.constexpr, SILU: tl.constexpr, RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid ``(row tiles, column tiles, splits)``: programs that read the same weights are neighbours."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    own, stored = row < num_rows, column < OUT
    weight_ptr += column.to(tl.int64) * stride_weight
    tiles: tl.constexpr = (WIDTH + BLOCK_K - 1) // BLOCK_K
    per_split = tl.cdiv(tiles * HALVES, tl.num_programs(2))
    first = tl.program_id(2) * per_split
    last = tl.minimum(first + per_split, tiles * HALVES)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    row_ptr, read = _embedding(first_ptr, ids_ptr, row, own, num_embeddings, stride_first, GATHER)
    acc = _multiply(acc, row_ptr, read, weight_ptr, stored, first, tl.minimum(last, tiles), WIDTH, BLOCK_K)
    if HALVES == 2:
        row_ptr = second_ptr + row * stride_second
        first = tl.maximum(first - tiles, 0)
        acc = _multiply(acc, row_ptr, own, weight_ptr + WIDTH, stored, first, last - tiles, WIDTH, BLOCK_K)
    mask = own[:, None] & stored[None, :]
    at = row[:, None] * OUT + column[None, :]
    if PARTIAL:
        tl.store(out_ptr + tl.program_id(2).to(tl.int64) * num_rows * OUT + at, acc, mask=mask)
    else:
        out = _finish(acc, residual_ptr, at, mask, out_ptr.dtype.element_ty, SILU, RESIDUAL)
        tl.store(out_ptr + at, out, mask=mask)


@triton.jit
def _sum_kernel(
    partial_ptr, residual_ptr, out_ptr, count, SPLITS: tl.constexpr, SILU: tl.constexpr, RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(partial_ptr + tl.cast(split, tl.int64) * count + at, mask=mask, other=0.0)
    out = _finish(total, residual_ptr, at, mask, out_ptr.dtype.element_ty, SILU, RESIDUAL)
    tl.store(out_ptr + at, out, mask=mask)


@triton.jit
def _rms_norm(x, weight, eps, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """``x`` and ``weight`` in float32, but rounded as if they were not."""
    x = x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    return (x.to(DTYPE).to(tl.float32) * weight).to(DTYPE)


@triton.jit(do_not_specialize=["num_embeddings"])
def _norm_kernel(
    total_ptr, bias_ptr, post_ptr, input_ptr, table_ptr, ids_ptr, hidden_ptr, both_ptr,
    num_embeddings, stride_table, eps, WIDTH: tl.constexpr, GATHER: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid ``(rows, 2)``: the hidden state to the left half of ``both``, the embedding to the right one. Without splits
    ``total`` is the hidden state."""
    dtype = both_ptr.dtype.element_ty
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < WIDTH
    input_weight = tl.load(input_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if tl.program_id(1) == 0:
        at = row * WIDTH + column
        if SPLITS == 0:
            hidden = tl.load(total_ptr + at, mask=inside, other=0.0)
        else:
            total = tl.zeros([BLOCK], tl.float32)
            for split in tl.static_range(SPLITS):
                total += tl.load(
                    total_ptr + tl.num_programs(0).to(tl.int64) * split * WIDTH + at, mask=inside, other=0.0
                )
            total += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
            hidden = total.to(dtype)
            tl.store(hidden_ptr + at, hidden, mask=inside)
        post_weight = tl.load(post_ptr + column, mask=inside, other=0.0).to(tl.float32)
        once = _rms_norm(hidden.to(tl.float32), post_weight, eps, WIDTH, dtype)
        twice = _rms_norm(once.to(tl.float32), input_weight, eps, WIDTH, dtype)
        tl.store(both_ptr + row * 2 * WIDTH + column, twice, mask=inside)
    else:
        own = row >= 0  # every program has a row
        row_ptr, read = _embedding(table_ptr, ids_ptr, row, own, num_embeddings, stride_table, GATHER)
        embedding = tl.load(row_ptr + column, mask=inside & read, other=0.0).to(tl.float32)
        normed = _rms_norm(embedding, input_weight, eps, WIDTH, dtype)
        tl.store(both_ptr + row * 2 * WIDTH + WIDTH + column, normed, mask=inside)


def tile_for(rows: int) -> Tile:
    return next((tile for most, tile in TILES if rows <= most), LARGEST)


def num_splits(programs: int, depth: int, processors: int) -> int:
    """Number of parts that a product of ``programs`` tiles of the output and ``depth`` inner tiles is split into."""
    return max(1, min(processors * PROGRAMS_PER_PROCESSOR // programs, depth // MIN_DEPTH, MAX_SPLITS))


class Products:
    """Matrix products of ``rows`` rows, with what each is finished by."""

    def __init__(self, rows: int, processors: int) -> None:
        self.rows, self.processors, self.tile = rows, processors, tile_for(rows)

    def parts(self, first: Tensor, ids: Tensor | None, second: Tensor, weight: Tensor) -> Tensor:
        """``[splits, T, N]`` float32, to be added, of the product of ``[first; second]``."""
        splits = self._splits(weight, first.shape[1], halves=2)
        out = first.new_empty(splits, self.rows, len(weight), dtype=torch.float32)
        self._launch(first, ids, second, weight, None, out, splits, halves=2, partial=True)
        return out

    def finished(self, x: Tensor, weight: Tensor, *, silu: bool = False, residual: Tensor | None = None) -> Tensor:
        """``[T, N]``."""
        splits = self._splits(weight, x.shape[1], halves=1)
        out = x.new_empty(self.rows, len(weight))
        finish = {"SILU": silu, "RESIDUAL": residual is not None}
        if splits == 1:
            self._launch(x, None, None, weight, residual, out, 1, halves=1, partial=False, **finish)
        else:
            partial = x.new_empty(splits, self.rows, len(weight), dtype=torch.float32)
            self._launch(x, None, None, weight, None, partial, splits, halves=1, partial=True)
            count = out.numel()
            _sum_kernel[(triton.cdiv(count, SUMMED),)](
                partial, residual, out, count, SPLITS=splits, **finish, BLOCK=SUMMED, num_warps=4
            )
        return out

    def _splits(self, weight: Tensor, width: int, halves: int) -> int:
        programs = triton.cdiv(self.rows, self.tile.rows) * triton.cdiv(len(weight), self.tile.columns)
        depth = halves * triton.cdiv(width * weight.element_size(), self.tile.depth_bytes)
        return num_splits(programs, depth, self.processors)

    def _launch(
        self, first: Tensor, ids: Tensor | None, second: Tensor | None, weight: Tensor, residual: Tensor | None,
        out: Tensor, splits: int, *, halves: int, partial: bool, **finish: bool,
    ) -> None:  # fmt: skip
        tile = self.tile
        grid = triton.cdiv(self.rows, tile.rows), triton.cdiv(len(weight), tile.columns), splits
        _product_kernel[grid](
            first, ids, second, weight, residual, out, self.rows, len(first),
            first.stride(0), 0 if second is None else second.stride(0), weight.stride(0),
            OUT=len(weight), WIDTH=first.shape[1], GATHER=ids is not None, HALVES=halves,
            PARTIAL=partial, **{"SILU": False, "RESIDUAL": False} | finish,
            BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth_bytes // weight.element_size(),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


def _norms(
    total: Tensor, embeddings: Tensor, token_ids: Tensor | None, weights: FusionWeights, eps: float
) -> tuple[Tensor, Tensor]:
    """The hidden state, and it and the embedding normalised, ``[T, 2 d]``. ``total`` ``[splits, T, d]``, or the hidden
    state itself."""
    rows, width = total.shape[-2:]
    splits = len(total) if total.dim() == 3 else 0
    hidden = embeddings.new_empty(rows, width) if splits else total
    both = embeddings.new_empty(rows, 2 * width)
    block = triton.next_power_of_2(width)
    _norm_kernel[rows, 2](
        total, weights.fc_bias, weights.post_norm, weights.input_norm, embeddings, token_ids, hidden, both,
        len(embeddings), embeddings.stride(0), eps, WIDTH=width, GATHER=token_ids is not None, SPLITS=splits,
        BLOCK=block, num_warps=max(1, min(16, block // 512)),
    )  # fmt: skip
    return hidden, both


def token_guided_fusion(
    features: Tensor, embeddings: Tensor, token_ids: Tensor | None, weights: FusionWeights, eps: float, residual: bool,
    *, processors: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``processors`` of the GPU: how many programs keep it busy."""
    products = Products(len(features), processors)
    total = products.parts(embeddings, token_ids, features, weights.fc)
    hidden, both = _norms(total, embeddings, token_ids, weights, eps)
    expanded = products.finished(both, weights.up, silu=True)
    return hidden, products.finished(expanded, weights.down, residual=hidden if residual else None)


def with_library_products(
    features: Tensor, embeddings: Tensor, token_ids: Tensor | None, weights: FusionWeights, eps: float, residual: bool
) -> tuple[Tensor, Tensor]:
    """Compute the fusion with cuBLAS's products, which are better for many rows."""
    gathered = embeddings if token_ids is None else F.embedding(token_ids, embeddings)
    hidden = F.linear(torch.cat((gathered, features), dim=-1), weights.fc, weights.fc_bias)
    hidden, both = _norms(hidden, embeddings, token_ids, weights, eps)
    mlp = F.linear(F.silu(F.linear(both, weights.up), inplace=True), weights.down)
    return hidden, mlp.add_(hidden) if residual else mlp
