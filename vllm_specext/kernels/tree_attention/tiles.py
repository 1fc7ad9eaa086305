"""How a launch of tree attention is cut: the tile of a program, and how many runs a batch may be in.

Both follow from shapes alone, so that they are the same in every replay of a CUDA graph.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_specext.kernels.tree_attention.naive import TreeRows

KIB = 1024
QUERY_TILE_BYTES = 32 * KIB
KEY_TILE_BYTES = 16 * KIB
WARPS_PER_PROCESSOR = 8  # as many as the registers of a multiprocessor hold at once
MIN_RUN = 256  # slots; below that the second kernel costs more than the split gains
MAX_SPLITS = 64  # of one request
MERGED_AT_ONCE = 512  # numbers of a row
ROUNDS = 3  # of programs, at most; what the GPU works on at once is one
WARP = 32  # threads; it adds up as many requests without a barrier
LATENT = (64, 32), (32, 32), (16, 32), (16, 16)
"""Rows times heads, and slots, of a tile over a latent cache, the largest of which that fits is chosen. With 128 rows
the results of 512 numbers each would not fit into registers."""


@dataclass(frozen=True)
class Processors:
    """A GPU's multiprocessors: how many, what shared memory in bytes each has and gives to one program, and whether the
    queries of a product lie there too, as they do from Hopper on."""

    count: int
    memory: int
    memory_of_program: int
    queries_in_memory: bool

    @staticmethod
    @cache
    def of(device: torch.device) -> "Processors":
        """Those of a CUDA device."""
        gpu = torch.cuda.get_device_properties(device)
        # Torch's types do not name it, and AMD's GPUs have no such limit.
        of_program = getattr(gpu, "shared_memory_per_block_optin", gpu.shared_memory_per_block)
        memory = gpu.shared_memory_per_multiprocessor, of_program
        return Processors(gpu.multi_processor_count, *memory, queries_in_memory=gpu.major in (9, 10))

    def room(self, warps: int) -> int:
        """Programs of so many warps that all of them work on at once."""
        return self.count * (WARPS_PER_PROCESSOR // warps)


class Tile(NamedTuple):
    block_m: int
    """Rows times heads of a program."""
    block_n: int
    """Slots that it works on at once."""
    warps: int
    stages: int
    """With 3, the keys and values of a tile are fetched two tiles ahead, with 2, one."""


class Launch(NamedTuple):
    tile: Tile
    runs: int
    """No more than so many are worked on side by side, if any request is in several. 1: none is."""
    at_once: int
    """Programs that the GPU has room for."""

    def block_of_requests(self, requests: int) -> int:
        """The block over the requests where any may be in several runs, else 0. Few sizes, because each is compiled."""
        return 0 if self.runs == 1 else max(WARP, next_power(requests))


def next_power(number: int) -> int:
    """The least power of two that is no less than ``number``."""
    return 1 << (number - 1).bit_length()


def further_size(key_cache: Tensor, value_cache: Tensor) -> int:
    """How many numbers keys have after those that are their values too; 0 where values lie elsewhere."""
    return key_cache.shape[3] - value_cache.shape[3]


def launch_for(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: TreeRows, processors: Processors) -> Launch:
    """Choose for ``query`` ``[T, Hq, D]``, keys ``[pages, Hkv, page size, D]`` and values of the same or, where they
    are the first numbers of the keys, of fewer dimensions."""
    kv_heads = key_cache.shape[1]
    packed = rows.max_query_len * (query.shape[1] // kv_heads)
    sizes = value_cache.shape[3], further_size(key_cache, value_cache)
    tile = tile_for(packed, sizes[0], query.element_size(), processors, further=sizes[1])
    at_once = processors.room(tile.warps)
    fill = at_once // (kv_heads * row_tiles(packed, tile))
    requests, splits = rows.block_table.shape[0], min(rows.max_seq_len // MIN_RUN, MAX_SPLITS)
    # A batch of few requests fills its last round badly, unless shorter runs make more rounds. With more requests that
    # gains little, and the programs without a run cost more. One request fills one round as well as any.
    rounds = ROUNDS if 1 < next_power(requests) <= 2 * fill else 1
    runs = max(1, min(fill * rounds, requests * splits)) if splits > 1 else 1
    return Launch(tile, runs, at_once)


@cache
def tile_for(packed: int, head_size: int, element_size: int, processors: Processors, further: int = 0) -> Tile:
    """Choose for so many rows times the heads that share a head of the cache, in the widest request, and values of
    ``head_size``. Keys have so many numbers ``further`` where values are their first ones."""
    padded, element_size = next_power(head_size), max(element_size, 2)  # float8 is converted to float16
    row_bytes = padded * element_size
    if further:
        block_m, block_n = _latent(packed, padded, element_size, processors, further)
    else:
        block_m = max(16, min(128, next_power(packed), QUERY_TILE_BYTES // row_bytes))
        block_n = max(16, min(64, KEY_TILE_BYTES // row_bytes))
    # The accumulators alone take 64 registers of each thread, and from 128 on the rest would not fit.
    warps = 8 if block_m == 128 or block_m * padded > 64 * 128 else 4
    two, three = (Tile(block_m, block_n, warps, stages) for stages in (2, 3))

    def side_by_side(tile: Tile) -> int:
        memory = shared_memory(tile, padded, element_size, processors.queries_in_memory, further)
        if memory > processors.memory_of_program:
            return 0
        return min(WARPS_PER_PROCESSOR // warps, processors.memory // (memory + KIB))  # CUDA takes a KiB of each

    return three if side_by_side(three) >= max(side_by_side(two), 1) else two


def _latent(packed: int, head_size: int, element_size: int, processors: Processors, further: int) -> tuple[int, int]:
    """Rows times heads, and slots, of a tile whose values are the first numbers of its keys."""
    rows = max(16, next_power(packed))
    for block_m, block_n in LATENT:
        tile = Tile(block_m, block_n, warps=8, stages=2)
        needed = shared_memory(tile, head_size, element_size, processors.queries_in_memory, further)
        if block_m <= rows and needed <= processors.memory_of_program:
            break
    return block_m, block_n


def shared_memory(tile: Tile, head_size: int, element_size: int, queries_in_memory: bool, further: int = 0) -> int:
    """Bytes that Triton gives a program, or a little more than those, as seen in what it compiles."""
    queries = tile.block_m * (head_size + further) * element_size
    keys_and_values = tile.block_n * (head_size + (further or head_size)) * element_size
    if queries_in_memory and tile.block_m >= 64:
        return tile.stages * keys_and_values + queries
    # The last stage is in registers; the queries and the weights of a tile pass through memory.
    weights = 0 if tile.block_m == 128 and element_size == 2 else tile.block_m * tile.block_n * element_size
    return (tile.stages - 1) * keys_and_values + queries + weights


def lengths_tried(block_of_requests: int) -> int:
    """Of a run, by every program for all requests."""
    return max(4, min(32, 2048 // block_of_requests))


def merge_blocks(padded_head_size: int) -> tuple[int, int]:
    """Heads of a program of the second kernel, and runs that it reads at once: each of its 128 threads has 16 bytes of
    a run's result, and a request is seldom in many more than 4 runs."""
    return max(1, MERGED_AT_ONCE // padded_head_size), 4


def row_tiles(packed: int, tile: Tile) -> int:
    """Number of tiles that the rows of the widest request make."""
    return -(-packed // tile.block_m)


def variant(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: TreeRows, processors: Processors
) -> tuple[Tile, int]:
    """Name what a launch on ``rows`` is compiled for; launches with the same layer and variant share a binary."""
    launch = launch_for(query, key_cache, value_cache, rows, processors)
    return launch.tile, launch.block_of_requests(rows.block_table.shape[0])
