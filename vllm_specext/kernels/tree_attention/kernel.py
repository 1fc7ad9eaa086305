"""Tree attention in Triton: one pass over a request's keys for all its rows and all heads that share the keys.

The rows of a request times the ``G`` query heads of a head of the cache are the M dimension of the products, so that a
tile of keys and values is read once for up to ``BLOCK_M`` of them. What a request attends to is cut into tiles, those
of the prefix first and then those of the tree, and the tiles into runs that are worked on side by side, of
about equal length, so that a long request among short ones has more of them and does not finish last. A request in
several runs leaves the result of each with the log-sum-exp of its scores, by which a second kernel weighs and adds
them.

All shapes come from the host and all lengths from the device, so a launch waits for nothing and may be captured in a
CUDA graph: ``tiles.py`` says by shapes alone how many runs there may be, and every program finds by the lengths of the
step how many there are, its request and its run. Runs of so many slots each, which need no such search, would have to
be sized for the longest context that a graph may ever see, and would leave most of the GPU idle for one request of an
ordinary length.

In a latent cache the values of ``HEAD_SIZE`` numbers are the first ones of the keys, which have ``FURTHER`` more: a
tile of keys is read once, for both products.

Caches in float8 hold a value divided by its scale, which is folded into the scores and into the result. vLLM's
backends want the query in float8 as well; tiles are then converted to float16, which holds float8 exactly, so that
queries, keys and values are those of plain decoding bit for bit. The weights of the softmax stay in 16 bits, where the
backends round them to float8 relative to the largest score of the tiles so far: repeating that with other tiles than
theirs would not repeat their errors, but add as many again.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def _shares(
    start_ptr, prefix_ptr, requests, num_nodes, runs, at_once, programs,
    WINDOW: tl.constexpr, MIN_RUN: tl.constexpr, MAX_SPLITS: tl.constexpr, BLOCK_R: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """``[BLOCK_R]``: how many runs each request is cut into, no more than ``runs`` in all if it is into several. A run
    has ``programs``, of which the GPU works on ``at_once``: of ``LENGTHS`` of a run, the one whose rounds take
    least.

    In floating point, because every program does this before it begins, and integers are divided in some twenty
    instructions. Any counts will do that all programs agree on, so rounding matters in one place: the same
    multiplication has to give the counts that are compared with ``runs`` and those that are returned."""
    request = tl.arange(0, BLOCK_R)
    start = tl.load(start_ptr + request, mask=request < requests, other=0)
    has_rows = tl.load(start_ptr + request + 1, mask=request < requests, other=0) > start  # others pad the batch
    slots = tl.load(prefix_ptr + request, mask=request < requests, other=0).to(tl.int32)
    if WINDOW:
        slots = tl.minimum(slots, WINDOW)
    slots = tl.where(has_rows, slots + num_nodes, 0).to(tl.float32)
    longest, others = tl.max(slots, 0), tl.sum(has_rows.to(tl.int32), 0) - 1
    # The longest request whole, or in so many parts: of few parts each number is tried, because one more makes much
    # difference to the length of a run. No branch here: with one, Triton does not pipeline keys and values.
    most = tl.maximum(tl.minimum(runs - others, MAX_SPLITS), 1)
    tried = tl.arange(0, LENGTHS).to(tl.float32)
    skipped = tl.maximum(most - (LENGTHS - 1), 0) / ((LENGTHS - 1) * (LENGTHS - 1))
    parts = tl.minimum(tl.maximum(tl.ceil(tried + skipped * tried * tried), 1), most)
    lengths = tl.maximum(longest / parts + 1, MIN_RUN)  # a slot more, lest rounding makes a part more
    of_slot = 1 / lengths
    counts = tl.sum(tl.ceil(slots[:, None] * of_slot[None, :]), 0)
    rounds = tl.ceil((counts * programs - 0.5) / at_once)  # so that rounding does not make a full round two
    # Beginning a run, and merging it with others, take about as long as the shortest run that pays.
    taken = rounds * (lengths + tl.where(counts > others + 1, MIN_RUN, 0))
    taken = tl.where((counts <= runs) | (parts == 1), taken, float("inf"))
    chosen = tl.min(tl.where(taken == tl.min(taken, 0), of_slot, 1), 0)
    return tl.ceil(slots * chosen).to(tl.int32)


@triton.jit
def _of_request(counts, request, BLOCK_R: tl.constexpr):
    """The first run of a request, and how many there are."""
    index = tl.arange(0, BLOCK_R)
    return tl.sum(tl.where(index < request, counts, 0), 0), tl.sum(tl.where(index == request, counts, 0), 0)


@triton.jit
def _seen(visible_ptr, row, own, first, num_nodes, stride_row, stride_word, BLOCK_T: tl.constexpr):
    """``[M, BLOCK_T]``: whether each row sees each node from ``first`` on, which all are in one word."""
    word = tl.load(visible_ptr + row * stride_row + (first // 32) * stride_word, mask=own, other=0)
    node = first + tl.arange(0, BLOCK_T)
    return ((word[:, None] >> (node % 32)[None, :]) & 1 != 0) & (node < num_nodes)[None, :]


@triton.jit
def _pages(table_ptr, stride_table, slot, read, PAGE_SIZE: tl.constexpr):
    """The page of each slot that is to be ``read``, and page 0 for the others."""
    return tl.load(table_ptr + (slot // PAGE_SIZE) * stride_table, mask=read, other=0)


@triton.jit
def _pages_from(first, end, table_ptr, stride_table, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Those of the slots from ``first`` on and before ``end``, where a request's row of the table ends."""
    slot = first + tl.arange(0, BLOCK_N)
    return _pages(table_ptr, stride_table, slot, slot < end, PAGE_SIZE)


@triton.jit
def _attend(
    acc, top, total, query, further, slot, page, read, visible, key_ptr, value_ptr,
    stride_key_page, stride_key_slot, stride_key_dim,
    stride_value_page, stride_value_slot, stride_value_dim, scale, soft_cap,
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, PAGE_SIZE: tl.constexpr, SOFT_CAP: tl.constexpr,
):  # fmt: skip
    """Add one tile of slots, which lie in ``page``, to the softmax. Only what somebody sees is read: a weight of 0 does
    not cancel a NaN. ``read`` and ``visible`` are ``None`` where all rows see all slots. ``scale`` is positive.
    ``further``: the query's dimensions after the ``HEAD_SIZE`` of the values, which are the keys' first; ``None`` where
    values lie elsewhere."""
    dim = tl.arange(0, BLOCK_D)
    loaded = (dim < HEAD_SIZE)[None, :]
    if read is not None:
        loaded = read[:, None] & loaded
    page = page.to(tl.int64)
    place = slot % PAGE_SIZE
    keys = key_ptr + page * stride_key_page + place * stride_key_slot
    values = value_ptr + page * stride_value_page + place * stride_value_slot
    key = tl.load(keys[:, None] + dim[None, :] * stride_key_dim, mask=loaded, other=0.0)
    if further is None:
        value = tl.load(values[:, None] + dim[None, :] * stride_value_dim, mask=loaded, other=0.0)
    else:
        value = key
        after = keys[:, None] + (HEAD_SIZE + tl.arange(0, further.shape[1]))[None, :] * stride_key_dim
        rest = tl.load(after) if read is None else tl.load(after, mask=read[:, None], other=0.0)
    key, value = key.to(query.dtype), value.to(query.dtype)  # of float8
    # "ieee" is for float32, which tensor cores would cut to 10 bits of mantissa.
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if further is not None:
        scores = tl.dot(further, tl.trans(rest.to(query.dtype)), scores, input_precision="ieee")
    if SOFT_CAP:
        scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scale * scores) - 1.0)  # tanh
    if visible is not None:
        scores = tl.where(visible, scores, float("-inf"))
    # A maximum is kept as it came, and scaled with what it is taken from in one multiplication and addition.
    factor = 1.0 if SOFT_CAP else scale
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet has -inf for its maximum, and -inf less -inf would be NaN.
    base = tl.where(new_top == float("-inf"), 0.0, new_top) * factor
    weights = tl.exp2(scores * factor - base[:, None])
    shrink = tl.exp2(top * factor - base)
    acc = acc * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return acc, new_top, total * shrink + tl.sum(weights, 1)


_SIZES = ["num_nodes", "max_slots", "max_rows", "requests", "runs", "at_once"]
# Who sees whom comes from several tensors. Another kernel for each stride would be compiled while requests wait.
_STRIDES = ["stride_table_request", "stride_visible_request"]


@triton.jit(do_not_specialize=_SIZES + _STRIDES)
def _tree_attention_kernel(
    query_ptr, key_ptr, value_ptr, out_ptr, query_scale_ptr, key_scale_ptr, value_scale_ptr, sink_ptr,
    table_ptr, start_ptr, prefix_ptr, visible_ptr, partial_ptr, lse_ptr, counts_ptr,
    stride_query_row, stride_query_head, stride_query_dim,
    stride_key_page, stride_key_head, stride_key_slot, stride_key_dim,
    stride_value_page, stride_value_head, stride_value_slot, stride_value_dim,
    stride_out_row, stride_out_head, stride_out_dim,
    stride_query_scale, stride_key_scale, stride_value_scale, stride_sink,
    stride_table_request, stride_table, stride_visible_request, stride_visible_row, stride_visible_word,
    num_nodes, max_slots, max_rows, requests, runs, at_once, scale, soft_cap,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, HEAD_SIZE: tl.constexpr, FURTHER: tl.constexpr,
    PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, SPLIT: tl.constexpr,
    MIN_RUN: tl.constexpr, MAX_SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr,
    LENGTHS: tl.constexpr,
):  # fmt: skip
    """Grid ``(row tiles, KV_HEADS, runs)``: programs that read the same keys are neighbours."""
    kv_head, run = tl.program_id(1), tl.program_id(2)
    request, first_run, splits = run, run, 1
    if SPLIT:
        programs = tl.num_programs(0) * tl.num_programs(1)
        counts = _shares(
            start_ptr, prefix_ptr, requests, num_nodes, runs, at_once, programs,
            WINDOW, MIN_RUN, MAX_SPLITS, BLOCK_R, LENGTHS,
        )  # fmt: skip
        is_first = tl.program_id(0) + kv_head + run == 0
        index = tl.arange(0, BLOCK_R)
        tl.store(counts_ptr + index, counts, mask=(index < BLOCK_R) & is_first)  # for the second kernel
        request = tl.sum((tl.cumsum(counts, 0) <= run).to(tl.int32), 0)
        if request >= requests:
            return  # the batch has fewer runs than it might have
        first_run, splits = _of_request(counts, request, BLOCK_R)
    packed = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row, head = packed // GROUPS, kv_head * GROUPS + packed % GROUPS
    start = tl.load(start_ptr + request)
    count = tl.load(start_ptr + request + 1) - start
    if tl.program_id(0) * BLOCK_M >= count * GROUPS:
        return  # a request of fewer rows than the widest
    own = row < count
    prefix = tl.load(prefix_ptr + request).to(tl.int32)
    visible_ptr += request.to(tl.int64) * stride_visible_request
    table_ptr += request.to(tl.int64) * stride_table_request
    key_ptr += kv_head.to(tl.int64) * stride_key_head
    value_ptr += kv_head.to(tl.int64) * stride_value_head

    # The first slot that each row sees, that any row of the tile sees, and that the root would see: where the loop
    # begins. With bounds that come from a reduction the loop would not be pipelined.
    oldest = tl.zeros([BLOCK_M], tl.int32)
    lowest = 0
    begin = 0
    if WINDOW:
        begin = tl.maximum(prefix + 1 - WINDOW, 0)
        oldest += prefix - WINDOW
        for node in range(0, num_nodes, BLOCK_T):
            seen = _seen(visible_ptr, row, own, node, num_nodes, stride_visible_row, stride_visible_word, BLOCK_T)
            oldest += tl.sum(seen.to(tl.int32), 1)
        lowest = tl.min(tl.where(own, oldest, prefix), 0)
    prefix_tiles = tl.cdiv(prefix - begin, BLOCK_N)
    tiles = prefix_tiles + tl.cdiv(num_nodes, BLOCK_T)
    per_run = tl.cdiv(tiles, splits)
    first = (run - first_run) * per_run
    last = tl.minimum(first + per_run, tiles)
    if query_scale_ptr is not None:
        scale *= tl.load(query_scale_ptr + kv_head * stride_query_scale)
    if key_scale_ptr is not None:
        scale *= tl.load(key_scale_ptr + kv_head * stride_key_scale)

    dim = tl.arange(0, BLOCK_D)
    stored = own[:, None] & (dim < HEAD_SIZE)[None, :]
    query_row = (start + row).to(tl.int64)
    query_ptr += query_row * stride_query_row + head * stride_query_head
    query = tl.load(query_ptr[:, None] + dim[None, :] * stride_query_dim, mask=stored, other=0.0)
    further = None
    if FURTHER:
        after = query_ptr[:, None] + (HEAD_SIZE + tl.arange(0, FURTHER))[None, :] * stride_query_dim
        further = tl.load(after, mask=own[:, None], other=0.0)
    if query.dtype.is_fp8():
        query = query.to(tl.float16)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sink_ptr is not None:
        # As if the request's first run had seen a slot with this score and a value of zeros.
        counted = own & (run == first_run)
        sink = tl.load(sink_ptr + head * stride_sink, mask=counted, other=float("-inf")).to(tl.float32)
        top = sink * LOG2_E if SOFT_CAP else sink * LOG2_E / scale
        total = counted.to(tl.float32)
    column = tl.arange(0, BLOCK_N)
    # Most tiles of the prefix are seen by all rows from end to end, and need no mask. Those before are at the window's
    # edge, which no row has more than the nodes away from that of the root; the last one comes after.
    edge = 0
    if WINDOW:
        edge = tl.cdiv(tl.maximum(prefix + num_nodes - WINDOW - begin, 0), BLOCK_N)
    whole = tl.minimum(tl.maximum(first, edge), last)
    whole_end = tl.maximum(tl.minimum(last, (prefix - begin) // BLOCK_N), whole)
    # Each tile finds its pages loaded, so that its keys and values need no other load and are fetched two tiles ahead.
    page_ahead = _pages_from(begin + whole * BLOCK_N, max_slots, table_ptr, stride_table, PAGE_SIZE, BLOCK_N)
    for tile in range(whole, whole_end):
        page, slot = page_ahead, begin + tile * BLOCK_N
        page_ahead = _pages_from(slot + BLOCK_N, max_slots, table_ptr, stride_table, PAGE_SIZE, BLOCK_N)
        acc, top, total = _attend(
            acc, top, total, query, further, slot + column, page, None, None, key_ptr, value_ptr,
            stride_key_page, stride_key_slot, stride_key_dim,
            stride_value_page, stride_value_slot, stride_value_dim, scale, soft_cap,
            HEAD_SIZE, BLOCK_D, PAGE_SIZE, SOFT_CAP,
        )  # fmt: skip
    for place in range(first, tl.minimum(last, prefix_tiles) - (whole_end - whole)):
        tile = place + tl.where(place < whole, 0, whole_end - whole)
        slot = begin + tile * BLOCK_N + column
        read = (slot >= lowest) & (slot < prefix)
        visible = read[None, :] & (slot[None, :] >= oldest[:, None])
        page = _pages(table_ptr, stride_table, slot, read, PAGE_SIZE)
        acc, top, total = _attend(
            acc, top, total, query, further, slot, page, read, visible, key_ptr, value_ptr,
            stride_key_page, stride_key_slot, stride_key_dim,
            stride_value_page, stride_value_slot, stride_value_dim, scale, soft_cap,
            HEAD_SIZE, BLOCK_D, PAGE_SIZE, SOFT_CAP,
        )  # fmt: skip
    for tile in range(tl.maximum(first, prefix_tiles), last):
        node = (tile - prefix_tiles) * BLOCK_T
        slot = prefix + node + tl.arange(0, BLOCK_T)
        seen = _seen(visible_ptr, row, own, node, num_nodes, stride_visible_row, stride_visible_word, BLOCK_T)
        visible = seen & (slot < max_slots)[None, :]
        read = tl.max(visible.to(tl.int32), 0) > 0
        page = _pages(table_ptr, stride_table, slot, read, PAGE_SIZE)
        acc, top, total = _attend(
            acc, top, total, query, further, slot, page, read, visible, key_ptr, value_ptr,
            stride_key_page, stride_key_slot, stride_key_dim,
            stride_value_page, stride_value_slot, stride_value_dim, scale, soft_cap,
            HEAD_SIZE, BLOCK_D, PAGE_SIZE, SOFT_CAP,
        )  # fmt: skip

    attended = acc / total[:, None]
    if value_scale_ptr is not None:
        attended *= tl.load(value_scale_ptr + kv_head * stride_value_scale)
    if SPLIT:
        at = (run.to(tl.int64) * max_rows + row) * (KV_HEADS * GROUPS) + head
        in_parts = splits > 1
        lse = (top if SOFT_CAP else top * scale) + tl.log2(total)  # -inf where the run shows the row nothing
        tl.store(lse_ptr + at, lse, mask=own & in_parts)
        written = stored & in_parts & (total > 0)[:, None]
        tl.store(partial_ptr + at[:, None] * HEAD_SIZE + dim[None, :], attended, mask=written)
        stored = stored & (splits == 1)
    out_ptr += query_row * stride_out_row + head * stride_out_head
    tl.store(out_ptr[:, None] + dim[None, :] * stride_out_dim, attended, mask=stored)


@triton.jit(do_not_specialize=["requests"])
def _merge_kernel(
    out_ptr, partial_ptr, lse_ptr, counts_ptr, start_ptr, stride_out_row, stride_out_head, stride_out_dim, requests,
    HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """``out = sum_s partial_s 2^(lse_s - lse)``. Grid ``(blocks of heads, rows of a request, requests in parts)``.
    A thread has the same numbers of all parts, so that none waits for another."""
    counts = tl.load(counts_ptr + tl.arange(0, BLOCK_R))
    in_parts = tl.cumsum((counts > 1).to(tl.int32), 0)
    request = tl.sum((in_parts <= tl.program_id(2)).to(tl.int32), 0)
    if request >= requests:
        return
    row = tl.program_id(1)
    start = tl.load(start_ptr + request)
    if row >= tl.load(start_ptr + request + 1) - start:
        return
    first_run, splits = _of_request(counts, request, BLOCK_R)
    column = tl.arange(0, BLOCK_H * BLOCK_D)
    head, dim = tl.program_id(0) * BLOCK_H + column // BLOCK_D, column % BLOCK_D
    own = (head < HEADS) & (dim < HEAD_SIZE)
    acc = tl.zeros([BLOCK_H * BLOCK_D], tl.float32)
    top = tl.full([BLOCK_H * BLOCK_D], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H * BLOCK_D], tl.float32)
    for first in range(0, splits, BLOCK_S):
        split = first + tl.arange(0, BLOCK_S)
        there = (split < splits)[:, None] & own[None, :]
        at = ((first_run + split).to(tl.int64) * tl.num_programs(1) + row)[:, None] * HEADS + head[None, :]
        lse = tl.load(lse_ptr + at, mask=there, other=float("-inf"))
        partial = tl.load(partial_ptr + at * HEAD_SIZE + dim[None, :], mask=there, other=0.0)
        new_top = tl.maximum(top, tl.max(lse, 0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights, shrink = tl.exp2(lse - base[None, :]), tl.exp2(top - base)
        # What a run that showed the row nothing should have written is anything, NaN too.
        partial = tl.where(lse > float("-inf"), partial, 0.0)
        acc = acc * shrink + tl.sum(partial * weights, 0)
        total = total * shrink + tl.sum(weights, 0)
        top = new_top
    out_ptr += (start + row).to(tl.int64) * stride_out_row
    tl.store(out_ptr + head * stride_out_head + dim * stride_out_dim, acc / total, mask=own)
