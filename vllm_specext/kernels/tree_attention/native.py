"""Tree attention in C++ on a CPU: for each head of the cache one pass over the keys, by the lengths of the requests."""

import torch
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
        "sinks": FLOAT,
    },
    "int num_rows, int max_query_len, int num_nodes, int max_seq_len, float scale, float soft_cap, int sliding_window",
)

NO_SINKS = torch.empty(0)


def takes(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: TreeRows, out: Tensor, sinks: Tensor | None
) -> bool:
    """Whether the body is there and knows these devices, data types and strides."""
    index = rows.block_table, rows.query_start_loc, rows.prefix_lens, rows.visible
    dense = query.stride(-1) == 1 and out.stride(-1) == 1 and query.dtype == key_cache.dtype == value_cache.dtype
    return dense and OPERATOR.takes(query, key_cache, value_cache, *index, out, NO_SINKS if sinks is None else sinks)


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
    sinks: Tensor | None = None,
) -> None:
    OPERATOR.overload(
        query, key_cache, value_cache,
        rows.block_table, rows.query_start_loc, rows.prefix_lens, rows.visible, out,
        NO_SINKS if sinks is None else sinks,
        rows.num_rows, rows.max_query_len, rows.num_nodes, rows.max_seq_len, scale, soft_cap, sliding_window,
    )  # fmt: skip
