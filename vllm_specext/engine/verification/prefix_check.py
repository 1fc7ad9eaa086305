"""Whether attention to prefixes and to nodes by two kernels is attention over trees, tried at start on small trees.

FlashAttention 3 is vLLM's build for the GPU at hand, and what layers share of a step is only right if it works as it
does today. Where it did not, tokens would change and nobody would notice. So two layers attend to random trees in a
CUDA graph, as the target's do, which is replayed with other lengths than it was captured with, and tree attention in
torch says what is right.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vllm_specext.engine.verification.prefix_attention import PrefixAttention
from vllm_specext.kernels.tree_attention import LayerArguments, TreeRows, naive
from vllm_specext.tree.topology import Topology

CAPTURED = 700, 1, 40, 0
"""Prefixes of four requests; the last one pads the batch."""
REPLAYED = 13, 1500, 129, 0
NODES = 13
"""Drafted, in trees in which each has two children."""
TOLERANCE = 0.02
"""Of the norm of the result: two roundings to bfloat16 are 0.003 to 0.005."""


def is_right(
    attend: PrefixAttention, cache: torch.Size, heads: int, dtype: torch.dtype, device: torch.device, longest: int
) -> bool:
    """For layers of ``heads`` whose cache has the shape ``cache``, ``[pages, Hkv, page size, 2 D]``, of requests of up
    to ``longest`` tokens, for which a graph is captured."""
    _, kv_heads, page_size, width = cache
    room = max(CAPTURED + REPLAYED) + NODES + 1
    pages_each = -(-room // page_size)
    random = torch.Generator(device).manual_seed(0)  # and not the one that others draw from
    sizes = len(CAPTURED) * pages_each, page_size, kv_heads, width
    made = torch.randn(sizes, generator=random, device=device).to(dtype)
    keys, values = made.transpose(1, 2).chunk(2, dim=-1)
    lens = torch.tensor(CAPTURED, dtype=torch.int32, device=device)
    rows = trees(lens, pages_each, page_size, max(longest, room))
    query = torch.randn(rows.num_rows, heads, width // 2, generator=random, device=device).to(dtype)
    out = torch.empty_like(query)

    def two_layers() -> None:
        for _ in range(2):
            attend.and_nodes(query, keys, values, rows, out)

    replay = captured(two_layers) if device.type == "cuda" else two_layers
    for prefixes in (CAPTURED, REPLAYED):
        lens.copy_(torch.tensor(prefixes))
        replay()
        told: LayerArguments = {"scale": attend.scale, "soft_cap": attend.soft_cap, "sliding_window": 0}
        expected = torch.empty(query.shape, dtype=torch.float32, device=device)
        # Torch gathers as many slots as there may be, and the longest request that a graph is for has too many.
        plan = naive.plan(replace(rows, max_seq_len=room))
        naive.tree_attention(query.float(), keys.float(), values.float(), plan, expected, **told)
        if not (out - expected).norm() <= TOLERANCE * expected.norm():
            return False
    return True


def trees(lens: Tensor, pages_each: int, page_size: int, longest: int) -> TreeRows:
    """Requests with prefixes of ``lens`` ``[R]`` whose pages are scattered, with a block table as wide as the
    ``longest`` needs."""
    requests, device = len(lens), lens.device
    parents = ((torch.arange(NODES + 1) - 1) // 2).clamp(min=0).repeat(requests, 1)
    ancestors = Topology.of(parents, torch.zeros_like(parents), NODES).ancestors
    scattered = torch.randperm(requests * pages_each, generator=torch.Generator().manual_seed(0))
    table = torch.zeros(requests, max(pages_each, -(-longest // page_size)), dtype=torch.int32)
    table[:, :pages_each] = scattered.view(requests, pages_each)
    counts = torch.tensor([0, *[NODES + 1] * (requests - 1), 0])
    return TreeRows(
        block_table=table.to(device),
        query_start_loc=counts.cumsum(0).int().to(device),
        prefix_lens=lens,
        visible=ancestors.to(device),
        num_rows=int(counts.sum()),
        max_query_len=NODES + 1,
        num_nodes=NODES + 1,
        max_seq_len=longest,
    )


def captured(function: Callable[[], None]) -> Callable[[], None]:
    """Its replay; what it compiles is compiled before."""
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    replay: Callable[[], None] = graph.replay
    return replay
