"""The parts ``compaction`` and ``small_kernels``: kernels that exist because torch would launch many small ones.

Times are of one call, in a graph of many calls, and of one call by the host, beside the same in torch. Data stays in
the cache: what counts here is launches.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_suite.attention_problem import random_trees
from benchmarks.gpu_suite.timing import DEVICE, measure
from vllm_specext.kernels import tree_layout
from vllm_specext.kernels.best_tokens import best_token, best_tokens
from vllm_specext.kernels.kv_compaction import compact
from vllm_specext.kernels.kv_compaction import naive as naive_compaction
from vllm_specext.kernels.kv_gather import gather
from vllm_specext.kernels.kv_gather import naive as naive_gather
from vllm_specext.kernels.kv_slots import kv_slots
from vllm_specext.kernels.kv_slots import naive as naive_slots
from vllm_specext.kernels.pointers import Caches
from vllm_specext.kernels.tree_expansion import expansion
from vllm_specext.kernels.tree_layout import naive as naive_layout
from vllm_specext.kernels.tree_walk import accept_chain, accept_tree
from vllm_specext.tree import expansion as in_torch
from vllm_specext.tree import walk
from vllm_specext.tree.expansion import Expansion
from vllm_specext.tree.topology import Topology

BATCHES = (1, 8, 64)
LAYERS, KV_HEADS, HEAD_SIZE, PAGE_SIZE = 32, 8, 128, 16
NODES, LEVELS, TOP_K = 60, 6, 10
CONTEXT = 512
VOCABULARY = 128256
CALLS = 20


def both(
    what: str, batch: int, ours: Callable[[], Any], theirs: Callable[[], Any], *, same: bool, waits: bool = False
) -> Iterator[dict[str, Any]]:
    """A row for us and one for torch. ``same``: whether the results were equal; ``waits``: torch's code waits for the
    device, and so cannot be captured."""
    for name, call, graph in (("ours", ours, True), ("torch", theirs, not waits)):
        row: dict[str, Any] = {"what": what, "implementation": name, "requests": batch, "wrong": not same}
        try:
            replayed = measure(call, graph=graph, calls=CALLS, flush=False)
            launched = measure(call, graph=False, flush=False)
        except Exception as error:
            yield row | {"skipped": f"{type(error).__name__}: {str(error)[:200]}"}
            continue
        yield row | replayed.row() | {"eager_us": round(launched.us, 2)}


def layers(count: int, pages: int) -> Caches:
    """Keys and values of ``count`` layers as they lie on a GPU of vLLM's."""
    sizes = (pages, PAGE_SIZE, KV_HEADS, 2 * HEAD_SIZE)
    made = (torch.empty(sizes, dtype=torch.bfloat16, device=DEVICE).normal_() for _ in range(count))
    return Caches(half for cache in made for half in cache.transpose(1, 2).chunk(2, dim=-1))


def compaction_rows(batches: Iterable[int] = BATCHES, layer_count: int = LAYERS) -> Iterator[dict[str, Any]]:
    """Six accepted nodes of sixty, all layers."""
    of_request = -(-(CONTEXT + NODES + 1) // PAGE_SIZE)
    for batch in batches:
        caches = layers(layer_count, batch * of_request)
        first = torch.arange(batch, device=DEVICE)[:, None] * of_request * PAGE_SIZE + CONTEXT
        destination = first + torch.arange(LEVELS + 1, device=DEVICE)
        chosen = torch.rand(batch, NODES, device=DEVICE).topk(LEVELS, dim=1).indices.sort(dim=1).values + 1
        source = torch.cat((first, first + chosen), dim=1)
        same = _compacts_alike(caches, source, destination)
        ours = partial(compact, caches, source, destination)
        theirs = partial(naive_compaction.compact, caches, source, destination)
        yield from both("compaction", batch, ours, theirs, same=same, waits=True)


def _compacts_alike(caches: Caches, source: Tensor, destination: Tensor) -> bool:
    """On the first and the last cache."""
    before = [caches[0].clone(), caches[-1].clone()]
    compact(caches, source, destination)
    naive_compaction.compact(before, source, destination)
    return all(torch.equal(ours, theirs) for ours, theirs in zip((caches[0], caches[-1]), before, strict=True))


def rows(batches: Iterable[int] = BATCHES, layer_count: int = LAYERS) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from _best_tokens(batch)
        yield from _kv_slots(batch)
        yield from _walks(batch)
        yield from _layouts(batch)
        yield from _expansions(batch)
        yield from _gathers(batch, layer_count)


def _best_tokens(batch: int) -> Iterator[dict[str, Any]]:
    """Of one level, from the logits that an output layer has just written. Torch promises no order where logits tie, as
    those of 16 bits often do; so the logits of the tokens are compared."""
    logits = torch.randn(batch * TOP_K, VOCABULARY, dtype=torch.bfloat16, device=DEVICE)
    given = logits, TOP_K, torch.full((len(logits),), 1.5, device=DEVICE)
    (tokens, log_probs), (others, expected) = (best(*given) for best in (best_tokens, in_torch.best_tokens))
    same = torch.equal(logits.gather(1, tokens), logits.gather(1, others))
    same = same and torch.allclose(log_probs, expected, rtol=1e-4, atol=1e-4)
    ours, theirs = (partial(best, *given) for best in (best_tokens, in_torch.best_tokens))
    yield from both("most likely tokens", batch, ours, theirs, same=same)
    of_chains = logits[:batch]
    same = torch.equal(best_token(of_chains), of_chains.argmax(dim=-1))
    one = partial(best_token, of_chains), partial(of_chains.argmax, dim=-1)
    yield from both("likeliest token", batch, *one, same=same)


def _kv_slots(batch: int) -> Iterator[dict[str, Any]]:
    """Of one level."""
    blocks = CONTEXT // PAGE_SIZE
    table = torch.randint(batch * blocks, (batch, blocks), dtype=torch.int32, device=DEVICE)
    slots = torch.randint(CONTEXT, (batch, TOP_K), device=DEVICE)
    given = table, slots, torch.rand(batch, TOP_K, device=DEVICE) < 0.9, PAGE_SIZE, CONTEXT - 1
    same = torch.equal(kv_slots(*given), naive_slots.kv_slots(*given))
    ours, theirs = partial(kv_slots, *given), partial(naive_slots.kv_slots, *given)
    yield from both("KV slots of a level", batch, ours, theirs, same=same)


def _walks(batch: int) -> Iterator[dict[str, Any]]:
    """A few hundred tokens, so that walks go down; trees whose siblings differ."""
    random = torch.Generator().manual_seed(batch)
    count = batch * (NODES + 1)
    starts = torch.arange(0, count + 1, NODES + 1, dtype=torch.int32, device=DEVICE)
    topology = random_trees(batch, NODES, random)
    drawn = torch.randint(50, (count,), generator=random)
    drafted = torch.arange(NODES + 1).repeat(batch)
    trees = Topology(*(tensor.to(DEVICE) for tensor in vars(topology).values()))
    drawn, drafted = drawn.to(DEVICE), drafted.to(DEVICE)
    arguments: Any = (drawn, drafted, starts, trees.parents, LEVELS)
    ours, theirs = accept_tree(*arguments), walk.accept_tree(*arguments)
    kept = torch.arange(LEVELS + 1, device=DEVICE) < theirs[1][:, None]
    same = all(torch.equal(one * kept, other * kept) for one, other in zip(ours[::2], theirs[::2], strict=True))
    same = same and torch.equal(ours[1], theirs[1])
    down = partial(accept_tree, *arguments), partial(walk.accept_tree, *arguments)
    yield from both("walk down a tree", batch, *down, same=same)
    width = 5
    chain_starts = torch.arange(0, batch * width + 1, width, dtype=torch.int32, device=DEVICE)
    chain: Any = (drawn[: batch * width] % 2, drafted[: batch * width] % 2, chain_starts, width)
    same = torch.equal(accept_chain(*chain)[1], walk.accept_chain(*chain)[1])
    along = partial(accept_chain, *chain), partial(walk.accept_chain, *chain)
    yield from both("walk along a chain", batch, *along, same=same)


def _layouts(batch: int) -> Iterator[dict[str, Any]]:
    """Before and after verification, of requests whose trees are whole."""
    random, slots = torch.Generator().manual_seed(batch), torch.randperm(batch, device=DEVICE).int()
    trees = Topology(*(tensor.to(DEVICE) for tensor in vars(random_trees(batch, NODES, random)).values()))
    causal = Topology.chain(1, NODES, DEVICE).ancestors[0]
    starts = torch.arange(0, batch * (NODES + 1) + 1, NODES + 1, dtype=torch.int32, device=DEVICE)
    seq_lens = torch.full((batch,), CONTEXT + NODES + 1, dtype=torch.int32, device=DEVICE)
    prefill_lens = torch.full((batch,), CONTEXT, dtype=torch.int32, device=DEVICE)
    positions = CONTEXT + torch.arange(NODES + 1, device=DEVICE).repeat(batch)
    made = {}
    for name, lay_out in (("ours", tree_layout.lay_out), ("torch", naive_layout.lay_out)):
        # Each lays out positions that it has laid out before, which takes as long.
        out = positions.clone(), torch.empty_like(seq_lens), torch.empty_like(trees.ancestors)
        given = slots, starts, seq_lens, prefill_lens, trees, causal, out[0], 1 << 20, *out[1:]
        lay_out(*given)
        made[name] = [tensor.clone() for tensor in out], partial(lay_out, *given)
    (ours, call), (theirs, other) = made["ours"], made["torch"]
    same = all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
    yield from both("layout of trees", batch, call, other, same=same)
    path = torch.rand(batch, NODES, device=DEVICE).topk(LEVELS + 1, dim=1).indices
    accepted: Any = (starts[:-1], path, torch.randint(1, LEVELS + 2, (batch,), dtype=torch.int32, device=DEVICE))
    found, expected = tree_layout.accepted_rows(*accepted), naive_layout.accepted_rows(*accepted)
    same = all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    rows_of = partial(tree_layout.accepted_rows, *accepted), partial(naive_layout.accepted_rows, *accepted)
    yield from both("rows of accepted paths", batch, *rows_of, same=same)


def _expansions(batch: int) -> Iterator[dict[str, Any]]:
    """All levels and the tree, without the drafter's passes between them."""
    tokens = torch.randint(VOCABULARY, (batch, TOP_K, TOP_K), device=DEVICE)
    log_probs = -torch.rand(batch, TOP_K, TOP_K, device=DEVICE).sort(dim=2).values

    def grow(begin: Callable[..., Expansion]) -> tuple[Tensor, Topology]:
        growing = begin(tokens[:, 0], log_probs[:, 0], LEVELS)
        for _ in range(LEVELS - 1):
            growing.grow(tokens, log_probs)
        return growing.tree(NODES)[:2]

    (tree, topology), (expected, shape) = grow(expansion), grow(Expansion)
    same = torch.equal(tree, expected) and torch.equal(topology.ancestors, shape.ancestors)
    yield from both("expansion", batch, partial(grow, expansion), partial(grow, Expansion), same=same)


def _gathers(batch: int, layer_count: int) -> Iterator[dict[str, Any]]:
    """The accepted paths of the batch."""
    pages = batch * 8
    caches = layers(layer_count, pages)
    slots = torch.randint(pages * PAGE_SIZE, (batch * (LEVELS + 1),), device=DEVICE)
    same = torch.equal(gather(caches, slots), naive_gather.gather(caches, slots))
    ours, theirs = partial(gather, caches, slots), partial(naive_gather.gather, caches, slots)
    yield from both("gather of all layers", batch, ours, theirs, same=same)
