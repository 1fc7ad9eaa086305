"""The expansion of draft trees in Triton: a program for each request.

Who is among the best is found by counting: a candidate's rank is the number of those with a larger score, and of
earlier ones with the same. That is the order of a stable sort without a sort, and every comparison is independent.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.tree.expansion import Expansion, Frontier
from vllm_specext.tree.topology import Topology, words

COMPARED = tl.constexpr(8)
"""Candidates that all others are compared with at once."""


@triton.jit
def _ahead(other, place, score, own):
    """``[BLOCK]``: how many of ``other`` ``[COMPARED]`` at ``place`` come before ``score`` ``[BLOCK]`` at ``own``."""
    larger = other[:, None] > score[None, :]
    earlier = (other[:, None] == score[None, :]) & (place[:, None] < own[None, :])
    return tl.sum((larger | earlier).to(tl.int32), 0)


@triton.jit
def _bits(node, word):
    """``[nodes, words]``: the one bit of each node."""
    return tl.where((node // 32)[:, None] == word[None, :], 1 << (node % 32)[:, None], 0)


@triton.jit(do_not_specialize=["first", "own_bits", "num_words"])
def _grow_kernel(
    tokens_ptr, log_probs_ptr, scores_before_ptr, candidates_before_ptr, visible_before_ptr,
    pool_tokens_ptr, pool_scores_ptr, pool_parents_ptr, nodes_ptr, scores_ptr, visible_ptr,
    stride_tokens, stride_log_probs, stride_pool, first, own_bits, num_words,
    FROM_ROOT: tl.constexpr, K: tl.constexpr, COUNT: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Grid ``requests``. ``nodes_ptr`` ``[3, R, K]``: tokens, candidates and parents of the frontier."""
    request, requests = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    tokens_ptr += request * stride_tokens
    log_probs_ptr += request * stride_log_probs
    scores_before_ptr += request * K
    place = tl.arange(0, BLOCK_C)
    real = place < COUNT
    parent = place // K
    token = tl.load(tokens_ptr + place, mask=real, other=0)
    score = tl.load(log_probs_ptr + place, mask=real, other=float("-inf"))
    from_candidate = tl.full([BLOCK_C], -1, tl.int64)
    if not FROM_ROOT:
        score += tl.load(scores_before_ptr + parent, mask=real, other=0.0)
        from_candidate = tl.load(candidates_before_ptr + request * K + parent, mask=real, other=0)
    in_pool = request * stride_pool + first + place
    tl.store(pool_tokens_ptr + in_pool, token, mask=real)
    tl.store(pool_scores_ptr + in_pool, score, mask=real)
    tl.store(pool_parents_ptr + in_pool, from_candidate, mask=real)

    rank = tl.zeros([BLOCK_C], tl.int32)
    for start in range(0, COUNT, COMPARED):
        at = start + tl.arange(0, COMPARED)
        other = tl.load(log_probs_ptr + at, mask=at < COUNT, other=float("-inf"))  # padding comes last
        if not FROM_ROOT:
            other += tl.load(scores_before_ptr + at // K, mask=at < COUNT, other=0.0)
        rank += _ahead(other, at, score, place)
    chosen = real & (rank < K)
    to = request * K + rank
    tl.store(nodes_ptr + to, token, mask=chosen)
    tl.store(nodes_ptr + requests * K + to, first + place, mask=chosen)
    tl.store(nodes_ptr + 2 * requests * K + to, parent, mask=chosen)
    tl.store(scores_ptr + to, score, mask=chosen)
    word = tl.arange(0, BLOCK_W)
    stored = chosen[:, None] & (word < num_words)[None, :]
    visible = _bits(own_bits + rank, word)
    if not FROM_ROOT:
        inherited = (request * K + parent)[:, None] * num_words + word[None, :]
        visible |= tl.load(visible_before_ptr + inherited, mask=stored, other=0)
    tl.store(visible_ptr + to[:, None] * num_words + word[None, :], visible, mask=stored)


@triton.jit(do_not_specialize=["size", "nodes", "num_words", "levels"])
def _tree_kernel(
    tokens_ptr, scores_ptr, parents_ptr, node_of_ptr, candidate_of_ptr,
    tree_tokens_ptr, tree_parents_ptr, tree_depths_ptr, ancestors_ptr, expected_ptr,
    stride_pool, size, nodes, num_words, levels,
    K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Grid ``requests``. ``node_of_ptr`` and ``candidate_of_ptr`` ``[R, size]`` int32 are scratch. ``expected_ptr``
    ``[R]``: the sum of the probabilities of the nodes' paths."""
    request = tl.program_id(0).to(tl.int64)
    tokens_ptr += request * stride_pool
    scores_ptr += request * stride_pool
    parents_ptr += request * stride_pool
    node_of_ptr += request * size
    candidate_of_ptr += request * size
    place = tl.arange(0, BLOCK_P)
    score = tl.load(scores_ptr + place, mask=place < size, other=float("-inf"))
    rank = tl.zeros([BLOCK_P], tl.int32)
    for start in range(0, size, COMPARED):
        at = start + tl.arange(0, COMPARED)
        other = tl.load(scores_ptr + at, mask=at < size, other=float("-inf"))
        rank += _ahead(other, at, score, place)
    tl.store(node_of_ptr + place, rank + 1, mask=place < size)
    tl.store(candidate_of_ptr + rank, place, mask=place < size)
    expected = tl.sum(tl.where((rank < nodes) & (place < size), tl.exp(score), 0.0), 0)
    tl.store(expected_ptr + request, expected)
    tl.debug_barrier()  # what one thread has written others read

    node = tl.arange(0, BLOCK_N)
    drafted = (node > 0) & (node <= nodes)
    candidate = tl.load(candidate_of_ptr + node - 1, mask=drafted, other=-1)
    depth = tl.where(candidate < K, 1, 2 + (candidate - K) // (K * K))
    row = request * (nodes + 1) + node
    tl.store(tree_depths_ptr + row, tl.where(drafted, depth, 0), mask=node <= nodes)
    tl.store(tree_tokens_ptr + row - request - 1, tl.load(tokens_ptr + candidate, mask=drafted, other=0), mask=drafted)
    word = tl.arange(0, BLOCK_W)
    ancestors = _bits(node, word)
    for level in range(levels):
        candidate = tl.load(parents_ptr + candidate, mask=candidate >= 0, other=-1).to(tl.int32)
        ancestor = tl.load(node_of_ptr + candidate, mask=candidate >= 0, other=0)
        ancestors |= _bits(ancestor, word)
        if level == 0:
            tl.store(tree_parents_ptr + row, ancestor, mask=node <= nodes)
    stored = (node <= nodes)[:, None] & (word < num_words)[None, :]
    tl.store(ancestors_ptr + row[:, None] * num_words + word[None, :], ancestors, mask=stored)


class FusedExpansion(Expansion):
    """One launch for each level and one for the tree. Rows of ``tokens`` and ``log_probs`` are dense."""

    def _plant(self, tokens: Tensor, log_probs: Tensor) -> Frontier:
        return self._level_of(tokens, log_probs, None)

    def _grow(self, tokens: Tensor, log_probs: Tensor, before: Frontier) -> Frontier:
        return self._level_of(tokens.flatten(1), log_probs.flatten(1), before)

    def _level_of(self, tokens: Tensor, log_probs: Tensor, before: Frontier | None) -> Frontier:
        requests, count = tokens.shape
        nodes = tokens.new_empty(3, requests, self.k)
        scores = log_probs.new_empty(requests, self.k)
        num_words = words(self._bits)
        visible = tokens.new_empty(requests, self.k, num_words, dtype=torch.int32)
        block_w = triton.next_power_of_2(num_words)
        own = (self.grown - 1) * self.k
        # The root has no scores, candidates and bits; its children do not read them.
        old = (scores, nodes, visible) if before is None else (before.scores, before.candidates, before.visible)
        _grow_kernel[requests,](
            tokens, log_probs, *old, self.tokens, self.scores, self.parents, nodes, scores, visible,
            tokens.stride(0), log_probs.stride(0), self.scores.stride(0), self._level(self.grown - 1).start,
            own if own < self._bits else 32 * block_w, num_words,
            FROM_ROOT=before is None, K=self.k, COUNT=count, BLOCK_C=triton.next_power_of_2(count), BLOCK_W=block_w,
            num_warps=4,
        )  # fmt: skip
        return Frontier(nodes[0], scores, nodes[1], nodes[2], visible)

    def _tree(self, nodes: int) -> tuple[Tensor, Topology, Tensor]:
        requests, num_words = self.tokens.shape[0], words(nodes + 1)
        # Each a tensor of its own: where the half of one is aligned to less, Triton compiles another variant.
        scratch = [self.tokens.new_empty(requests, self.size, dtype=torch.int32) for _ in range(2)]
        tokens = self.tokens.new_empty(requests, nodes)
        parents, depths = (self.tokens.new_empty(requests, nodes + 1) for _ in range(2))
        ancestors = self.tokens.new_empty(requests, nodes + 1, num_words, dtype=torch.int32)
        expected = self.scores.new_empty(requests)
        block_p = triton.next_power_of_2(self.size)
        _tree_kernel[requests,](
            self.tokens, self.scores, self.parents, *scratch, tokens, parents, depths, ancestors, expected,
            self.scores.stride(0), self.size, nodes, num_words, self.grown,
            K=self.k, BLOCK_P=block_p, BLOCK_N=triton.next_power_of_2(nodes + 1),
            BLOCK_W=triton.next_power_of_2(num_words), num_warps=8 if block_p > 512 else 4,
        )  # fmt: skip
        return tokens, Topology(parents, depths, ancestors), expected
