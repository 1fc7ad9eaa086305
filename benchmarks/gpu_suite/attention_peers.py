"""Tree attention and what it is measured against, on the same inputs.

Each function gets everything that depends on shapes ready and returns the call to be timed, whose result is
``[R Q, Hq, D]``. It raises ``ImportError`` where its library is not installed. ``CAUSAL`` are FlashAttention's kernels
for a chain of as many rows: they know no trees, and say what a tree may cost at best.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_suite.attention_problem import Problem
from vllm_specext.kernels.tree_attention import naive, tree_attention

Call = Callable[[], Any]


def ours(problem: Problem) -> Call:
    def call() -> Tensor:
        arguments = problem.query, problem.keys, problem.values, problem.rows, problem.out
        tree_attention(*arguments, scale=problem.scale)
        return problem.out

    return call


def sdpa(problem: Problem, backend: SDPBackend) -> Call:
    """Torch with the mask written out. The heads that share keys are rows of one head, so that no key is copied."""
    shape, (keys, values) = problem.shape, problem.dense
    groups = shape.heads // shape.kv_heads
    query = problem.padded_query.unflatten(1, (shape.kv_heads, groups)).flatten(2, 3)
    mask = problem.mask.repeat(1, groups, 1)[:, None]
    if backend is SDPBackend.EFFICIENT_ATTENTION:
        # This backend adds the mask to the scores and wants its rows aligned.
        padded = mask.new_zeros(*mask.shape[:-1], -(-mask.shape[-1] // 8) * 8, dtype=query.dtype)
        padded[..., : mask.shape[-1]].masked_fill_(~mask, float("-inf"))
        mask = padded[..., : mask.shape[-1]]
    mask = mask.expand(-1, shape.kv_heads, -1, -1)

    def call() -> Tensor:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=problem.scale)
        return out.unflatten(2, (groups, shape.rows)).permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)

    return call


def torch_on_pages(problem: Problem) -> Call:
    """What runs where there is no Triton."""
    plan = problem.rows.plan
    arguments: dict[str, Any] = {"scale": problem.scale, "soft_cap": 0.0, "sliding_window": 0}

    def call() -> Tensor:
        naive.tree_attention(problem.query, problem.keys, problem.values, plan, problem.out, **arguments)
        return problem.out

    return call


def flashinfer(problem: Problem) -> Call:
    """Its paged kernel with a custom mask."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # type: ignore[import-not-found]

    shape = problem.shape
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device=problem.query.device)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    pages = torch.arange(0, shape.requests + 1, dtype=torch.int32, device=workspace.device) * shape.pages
    last = (shape.slots - 1) % shape.page_size + 1
    wrapper.plan(
        problem.rows.query_start_loc,
        pages,
        problem.table.flatten(),
        torch.full((shape.requests,), last, dtype=torch.int32, device=workspace.device),
        shape.heads,
        shape.kv_heads,
        shape.head_size,
        shape.page_size,
        custom_mask=problem.mask.flatten(),
        sm_scale=problem.scale,
        q_data_type=problem.query.dtype,
    )
    halves = problem.keys.transpose(1, 2), problem.values.transpose(1, 2)
    return lambda: wrapper.run(problem.query, halves)


def xformers(problem: Problem) -> Call:
    """One tree for the whole batch is all it knows: that of the first request. The heads are expanded, not copied."""
    from xformers.ops.fmha.attn_bias import BlockDiagonalPaddedKeysMask  # type: ignore[import-not-found]
    from xformers.ops.tree_attention import tree_attention as attend  # type: ignore[import-not-found]

    shape = problem.shape
    groups = shape.heads // shape.kv_heads
    query = problem.padded_query.transpose(1, 2).unflatten(2, (shape.kv_heads, groups)).contiguous()
    dense = [x.transpose(1, 2).contiguous()[:, :, :, None] for x in problem.dense]
    prefix = [x[:, : shape.context].contiguous().expand(-1, -1, -1, groups, -1) for x in dense]
    tree = [x[:, shape.context :].contiguous().expand(-1, -1, -1, groups, -1) for x in dense]
    seen = problem.mask[0, :, shape.context :]
    # Rows of a bias have to begin at multiples of 8 elements.
    room = torch.zeros(shape.rows, -(-(shape.nodes + 1) // 8) * 8, dtype=query.dtype, device=query.device)
    bias = room[:, : shape.nodes + 1].masked_fill_(~seen, float("-inf"))
    lens = [shape.context] * shape.requests
    padded = BlockDiagonalPaddedKeysMask.from_seqlens([shape.rows] * shape.requests, shape.context, lens)
    return lambda: attend(query, *tree, *prefix, bias, padded).flatten(2, 3).flatten(0, 1)


def flash_2(problem: Problem) -> Call:
    """The FlashAttention-2 in torch, on keys and values side by side."""
    query, (keys, values) = problem.padded_query, problem.dense

    def call() -> Tensor:
        # This operator's causal mask ends at the last key for the last row, as decoding wants it.
        out = torch.ops.aten._scaled_dot_product_flash_attention(
            query, keys, values, 0.0, True, False, scale=problem.scale
        )
        return out[0].transpose(1, 2).flatten(0, 1)

    return call


def flash_3(problem: Problem) -> Call:
    """vLLM's FlashAttention-3, which reads pages."""
    lens = problem.rows.prefix_lens + problem.shape.nodes + 1
    return partial(flash_attention_3(), **_paged(problem), seqused_k=lens, causal=True)


def ours_after_flash_3(problem: Problem) -> Call:
    """The prefix with FlashAttention-3, and the nodes with our kernel, as the target has it. In a graph, every
    copy works out how its launch is divided, which the layers of a step do once."""
    flash_attention_3()
    from vllm_specext.engine.verification.prefix_attention import PrefixAttention

    over_prefixes = PrefixAttention(problem.scale, soft_cap=0.0)
    arguments = problem.query, problem.keys, problem.values, problem.rows, problem.out

    def call() -> Tensor:
        over_prefixes.and_nodes(*arguments)
        return problem.out

    return call


def flash_attention_3() -> Callable[..., Any]:
    from vllm.vllm_flash_attn import flash_attn_varlen_func
    from vllm.vllm_flash_attn.flash_attn_interface import is_fa_version_supported

    if not is_fa_version_supported(3):
        raise ImportError("vLLM's FlashAttention 3 is not in this installation or not for this GPU")
    attend: Callable[..., Any] = flash_attn_varlen_func
    return attend


def _paged(problem: Problem) -> dict[str, Any]:
    """What FlashAttention-3 is given, whatever it attends to."""
    return {
        "q": problem.query,
        "k": problem.keys.transpose(1, 2),
        "v": problem.values.transpose(1, 2),
        "max_seqlen_q": problem.shape.rows,
        "cu_seqlens_q": problem.rows.query_start_loc,
        "max_seqlen_k": problem.rows.max_seq_len,
        "softmax_scale": problem.scale,
        "block_table": problem.table,
        "fa_version": 3,
        "out": problem.out,
    }


TREES: dict[str, Callable[[Problem], Call]] = {
    "ours": ours,
    "ours after FlashAttention 3": ours_after_flash_3,
    "FlashInfer custom mask": flashinfer,
    "xformers static tree": xformers,
    "SDPA efficient": partial(sdpa, backend=SDPBackend.EFFICIENT_ATTENTION),
    "SDPA cuDNN": partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION),
    "torch on pages": torch_on_pages,
}
CAUSAL: dict[str, Callable[[Problem], Call]] = {
    "FlashAttention 2 causal": flash_2,
    "FlashAttention 3 causal": flash_3,
}
