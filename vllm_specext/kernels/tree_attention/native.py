"""Tree attention in C++ on a CPU: for each head of the cache one pass over the keys, by the lengths of the requests."""

from torch import Tensor

from vllm_specext.kernels.native.operators import FLOAT, INTEGER, WORD, Operator
from vllm_specext.kernels.tree_attention.naive import TreeRows

OPERATOR = Operator(
    "tree_attention",
    {
        "query": FLOAT,
        "key_cache": FLOAT,
        "value_cache": FLOAT,
        "block_table": INTEGER,
        "query_start_loc": INTEGER,
        "prefix_lens": INTEGER,
        "visible": WORD,
        "out": FLOAT,
    },
    "int num_rows, int max_query_len, int num_nodes, int max_seq_len, float scale, float soft_cap, int sliding_window",
)


def takes(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: TreeRows, out: Tensor) -> bool:
    """Whether the body is there and knows these devices, data types and strides."""
    index = rows.block_table, rows.query_start_loc, rows.prefix_lens, rows.visible
    dense = query.stride(-1) == 1 and out.stride(-1) == 1 and query.dtype == key_cache.dtype == value_cache.dtype
    return dense and OPERATOR.takes(query, key_cache, value_cache, *index, out)


def tree_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: TreeRows,
    out: Tensor,
    *,
    scale: float,
    soft_cap: float,
    sliding_window: int,
) -> None:
    # Not ``max_seq_len``: a recording is replayed when the requests have become longer.
    capacity = rows.block_table.shape[1] * key_cache.shape[2]
    OPERATOR.overload(
        query, key_cache, value_cache,
        rows.block_table, rows.query_start_loc, rows.prefix_lens, rows.visible, out,
        rows.num_rows, rows.max_query_len, rows.num_nodes, capacity, scale, soft_cap, sliding_window,
    )  # fmt: skip
