"""The parts ``tgf`` and ``tgf_tiles``: token-guided fusion of GRIFFIN's drafter for Llama-3-8B, by number of rows.

``tgf`` compares the kernels' own products with those of cuBLAS, plain and compiled, and says up to how many rows the
kernels win: the entry for ``FUSED_UP_TO_ROWS``.
"""

from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_suite import ceilings
from benchmarks.gpu_suite.attention import difference
from benchmarks.gpu_suite.timing import DEVICE, measure
from vllm_specext.kernels.token_guided_fusion import FusionWeights, naive

ROWS = (1, 2, 4, 8, 10, 16, 32, 60, 64, 128, 160, 256, 512)
HIDDEN, INNER, VOCABULARY = 4096, 14336, 128256
EPS = 1e-5
TOLERANCE = 0.02
TUNED = (10, 60)


def rows(
    counts: Iterable[int] = ROWS, hidden: int = HIDDEN, inner: int = INNER, vocabulary: int = VOCABULARY
) -> Iterator[dict[str, Any]]:
    from vllm_specext.kernels.token_guided_fusion import kernel

    weights, table = make(hidden, inner, vocabulary)
    compiled = torch.compile(naive.token_guided_fusion, dynamic=True)
    times: dict[str, dict[int, float]] = {}
    for count in counts:
        features = torch.randn(count, hidden, device=DEVICE).bfloat16()
        ids = torch.randint(vocabulary, (count,), device=DEVICE)
        arguments: Any = (features, table, ids, weights, EPS, True)
        reference = naive.token_guided_fusion(*arguments)[1]
        for name, call in {
            "torch": partial(naive.token_guided_fusion, *arguments),
            "torch.compile": partial(compiled, *arguments),
            "ours, fused": partial(kernel.token_guided_fusion, *arguments, processors=_processors()),
            "ours, cuBLAS": partial(kernel.with_library_products, *arguments),
        }.items():
            row: dict[str, Any] = {"implementation": name, "rows": count}
            try:
                row["difference"] = difference(call()[1], reference)
                timing = measure(call)
            except Exception as error:
                yield row | {"skipped": f"{type(error).__name__}: {str(error)[:200]}"}
                continue
            row["wrong"] = not row["difference"] <= TOLERANCE
            work = ceilings.fusion(count, hidden=hidden, inner=inner)
            yield row | timing.row() | ceilings.ceilings().shares(work, timing.us)
            times.setdefault(name, {})[count] = timing.us
    yield {
        "implementation": "FUSED_UP_TO_ROWS",
        "rows": fused_up_to(times.get("ours, fused", {}), times.get("ours, cuBLAS", {})),
    }


def fused_up_to(fused: dict[int, float], library: dict[int, float]) -> int:
    """The last number of rows before the kernels lose for the first time; 0 where they never win."""
    best = 0
    for count in sorted(fused):
        if fused[count] > library.get(count, float("inf")):
            break
        best = count
    return best


def make(hidden: int, inner: int, vocabulary: int) -> tuple[FusionWeights, Tensor]:
    """Weights of a size that keeps numbers near 1, and the table of embeddings."""

    def normal(*sizes: int, scale: float) -> Tensor:
        return torch.empty(sizes, dtype=torch.bfloat16, device=DEVICE).normal_(std=scale)

    weights = FusionWeights(
        fc=normal(hidden, 2 * hidden, scale=(2 * hidden) ** -0.5),
        fc_bias=normal(hidden, scale=0.1),
        post_norm=1 + normal(hidden, scale=0.1),
        input_norm=1 + normal(hidden, scale=0.1),
        up=normal(inner, 2 * hidden, scale=(2 * hidden) ** -0.5),
        down=normal(hidden, inner, scale=inner**-0.5),
    )
    return weights, normal(vocabulary, hidden, scale=1.0)


@cache
def _processors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count if DEVICE == "cuda" else 2


def tile_rows(
    counts: Iterable[int] = TUNED, hidden: int = HIDDEN, inner: int = INNER, vocabulary: int = VOCABULARY
) -> Iterator[dict[str, Any]]:
    """Other tiles than the kernel chooses by the number of rows."""
    from vllm_specext.kernels.token_guided_fusion import kernel

    weights, table = make(hidden, inner, vocabulary)
    stock = kernel.tile_for
    for count in counts:
        features = torch.randn(count, hidden, device=DEVICE).bfloat16()
        ids = torch.randint(vocabulary, (count,), device=DEVICE)
        arguments: Any = (features, table, ids, weights, EPS, True)
        work = ceilings.fusion(count, hidden=hidden, inner=inner)
        for tile in [stock(count), *_other_tiles(kernel.Tile, stock(count))]:
            row = {"rows": count, "tile": "as chosen" if tile == stock(count) else "tried", **_named(tile)}
            kernel.tile_for = partial(_this, tile)
            try:
                timing = measure(partial(kernel.token_guided_fusion, *arguments, processors=_processors()))
            except Exception as error:  # most often more shared memory than there is
                yield row | {"skipped": f"{type(error).__name__}: {str(error)[:120]}"}
                continue
            finally:
                kernel.tile_for = stock
            yield row | timing.row() | ceilings.ceilings().shares(work, timing.us)


def _this(tile: Any, rows: int) -> Any:
    return tile


def _other_tiles(tile_class: Any, own: Any) -> list[Any]:
    """Around the kernel's own choice: each of its sizes changed, the rows kept."""
    tried = (
        tile_class(own.rows, columns, depth, stages, 4)
        for columns, depth, stages in product((64, 32, 128), (128, 256), (4, 3, 5))
    )
    return [tile for tile in tried if tile != own]


def _named(tile: Any) -> dict[str, int]:
    return {
        "block_m": tile.rows,
        "block_n": tile.columns,
        "depth_bytes": tile.depth_bytes,
        "stages": tile.stages,
        "warps": tile.warps,
    }
