"""The parts ``tree_attention`` and ``attention_tiles``.

The first is tree attention beside its peers on the heads of Llama-3-8B and its drafters: the share of the memory
bandwidth, and the ratio to FlashAttention's causal kernel on as many rows, the fastest of those installed. The second
tries other tiles of our kernel than it chooses itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_suite import attention_peers, ceilings
from benchmarks.gpu_suite.attention_problem import Problem, Shape
from benchmarks.gpu_suite.ceilings import Work
from benchmarks.gpu_suite.timing import DEVICE, Timing, copies_for, measure

DRAFTED = {"nodes": 49, "frontier": 10}
"""The last level of a tree of 6 levels, 10 of which are nodes; GRIFFIN's heads have keys of their own."""
# Trees as large as the requests let them be, the chain that many requests get, and a level that is drafted; what
# matters most comes first.
SHAPES = (
    *(Shape(requests, context, 59) for context, requests in product((8192, 32768, 1024), (1, 4))),
    *(Shape(requests, context, 31) for context, requests in product((8192, 32768, 1024), (3, 8))),
    *(Shape(requests, context, 15) for context, requests in product((8192, 1024), (5, 16))),
    *(Shape(requests, context, 4) for context, requests in product((8192, 1024), (16, 64))),
    *(Shape(requests, 8192, kv_heads=heads, **DRAFTED) for heads, requests in product((32, 8), (1, 4))),
)
GOALS = {"many rows": ("floor_share", 0.70), "few": ("bandwidth_share", 0.85), "causal": ("ratio_to_causal", 1.15)}
"""Shares that trees, and chains and levels, are to reach, and how much longer than FlashAttention 3 they may take."""
FEW_ROWS = 10
"""Of a request: with no more than so many the keys and values are what takes the time, not the products."""
TOLERANCE = 0.02
"""Of the norm of a result, against the first peer that knows trees; two roundings to bfloat16 are 0.003 to 0.005."""
TUNED = (Shape(1, 8192, 59), Shape(4, 32768, 59), Shape(8, 8192, 31), Shape(16, 8192, 15), Shape(64, 8192, 4))
ROUNDS = (0, 1, 3)
"""How often the runs of a launch may fill the GPU. With 0 no request is in several."""


def work(shape: Shape) -> Work:
    heads = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_size": shape.head_size}
    return ceilings.attention(shape.requests, shape.slots, shape.rows, **heads)


def rows(shapes: Iterable[Shape] = SHAPES) -> Iterator[dict[str, Any]]:
    for shape in shapes:
        problems = [Problem(shape, seed=copy) for copy in range(copies_for(work(shape).bytes))]
        measured = [
            _measured(name, make, problems, trees)
            for trees, family in ((False, attention_peers.CAUSAL), (True, attention_peers.TREES))
            for name, make in family.items()
        ]
        causal = min((row["us"] for row in measured if not row["tree"] and "us" in row), default=None)
        results = {row["implementation"]: row.pop("result", None) for row in measured}
        # The static tree of xformers is another tree than that of all requests but the first.
        comparable = [name for name in attention_peers.TREES if "static" not in name and results[name] is not None]
        reference = next((results[name] for name in comparable if not name.startswith("ours")), None)
        for row in measured:
            name = row["implementation"]
            if name in comparable and reference is not None:
                row["difference"] = difference(results[name], reference)
                row["wrong"] = not row["difference"] <= TOLERANCE
            if row["tree"] and causal is not None and "us" in row:
                row["ratio_to_causal"] = round(row["us"] / causal, 3)
            if name == "ours" and "us" in row:
                row["missed"] = ", ".join(missed(row))
            yield row
        del problems, measured, results, reference
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def missed(row: dict[str, Any]) -> list[str]:
    """The figures of ``row`` that do not reach their goals."""
    share, least = GOALS["few" if row["rows"] <= FEW_ROWS else "many rows"]
    ratio, most = GOALS["causal"]
    names = [share] if row[share] < least else []
    return [*names, ratio] if row.get(ratio, 0) > most else names


def difference(result: Tensor, reference: Tensor) -> float:
    """Of two results, in parts of the reference's norm; NaN where either holds one."""
    reference = reference.float()
    return round(float((result.float() - reference).norm() / reference.norm()), 5)


def _measured(
    name: str, make: Callable[[Problem], Callable[[], Any]], problems: list[Problem], trees: bool
) -> dict[str, Any]:
    """``problems`` are copies of one; the result is the first one's."""
    shape = problems[0].shape
    problems[0].out.fill_(torch.nan)
    row, result = measured({"implementation": name, "tree": trees, **_sizes(shape)}, make, problems, work(shape))
    return row | {"result": result} if trees and result is not None else row


def measured(
    row: dict[str, Any], make: Callable[[Any], Callable[[], Any]], problems: Sequence[Any], least: Work
) -> tuple[dict[str, Any], Tensor | None]:
    """``row`` with how long the call takes that is made of each of the ``problems``, copies of one, beside the
    ``least`` work; and the first one's result. What cannot be measured is a row that says so."""
    try:
        calls = [make(each) for each in problems]
        result = calls[0]().detach().clone()
        timing = measure(*calls)
    except ImportError as error:
        return row | {"skipped": f"not installed: {error}"}, None
    except Exception as error:  # no room, or a shape that a peer cannot have
        return row | {"skipped": f"{type(error).__name__}: {str(error)[:200]}"}, None
    return row | timing.row() | ceilings.ceilings().shares(least, timing.us), result


def _sizes(shape: Shape) -> dict[str, int]:
    return {
        "requests": shape.requests,
        "context": shape.context,
        "nodes": shape.nodes,
        "rows": shape.rows,
        "kv_heads": shape.kv_heads,
    }


TILES = tuple(
    # Rows, slots, as many warps as hold the accumulators in registers, stages.
    (block_m, block_n, max(4, block_m // 16), stages)
    for block_m, block_n, stages in product((128, 64, 32), (64, 32, 128), (3, 2, 4))
    if block_n * stages <= 256
)
LEAST_SHARE = 4
"""A tile that is less than such a part of a request's rows reads keys and values too often."""


def tile_rows(
    shapes: Iterable[Shape] = TUNED, tiles: Iterable[tuple[int, ...]] = TILES, rounds: Iterable[int] = ROUNDS
) -> Iterator[dict[str, Any]]:
    """Tiles outside, so that each is compiled once, and what was tried before a time limit holds for all shapes."""
    from vllm_specext.kernels.tree_attention import launching
    from vllm_specext.kernels.tree_attention.tiles import (
        MIN_RUN,
        Launch,
        Processors,
        Tile,
        launch_for,
        next_power,
        row_tiles,
    )

    problems = [[Problem(shape, seed=copy) for copy in range(copies_for(work(shape).bytes))] for shape in shapes]
    options: dict[str, Any] = {"soft_cap": 0.0, "sliding_window": 0}

    def timed(copies: list[Problem], launch: Launch, how: str) -> dict[str, Any]:
        shape = copies[0].shape
        options.update(scale=copies[0].scale, launch=launch)
        row = {**_sizes(shape), "tile": how, **launch.tile._asdict(), "runs": launch.runs}
        tensors = [(each.query, each.keys, each.values, each.rows, each.out) for each in copies]
        try:
            timing: Timing = measure(*(partial(launching.tree_attention, *each, **options) for each in tensors))
        except Exception as error:  # most often more shared memory or registers than there are
            return row | {"skipped": f"{type(error).__name__}: {str(error)[:120]}"}
        return row | timing.row() | ceilings.ceilings().shares(work(shape), timing.us)

    processors = Processors.of(torch.device(DEVICE))
    for copies in problems:
        problem = copies[0]
        yield timed(
            copies, launch_for(problem.query, problem.keys, problem.values, problem.rows, processors), "as chosen"
        )
    for tile in (Tile(*sizes) for sizes in tiles):
        for copies in problems:
            shape = copies[0].shape
            packed = shape.rows * shape.heads // shape.kv_heads
            if not tile.block_m <= next_power(packed) <= LEAST_SHARE * tile.block_m:
                continue
            at_once = processors.room(tile.warps)
            fill = at_once // (shape.kv_heads * row_tiles(packed, tile))
            most = shape.requests * (shape.slots // MIN_RUN)
            for runs in dict.fromkeys(max(1, min(fill * each, most)) for each in rounds):
                yield timed(copies, Launch(tile, runs, at_once), "tried")
