"""Token-guided fusion (TGF), the first stage of GRIFFIN's drafter: features and token embeddings become the input of
its layer, the embeddings merged in twice.

Of a feature ``f`` and an embedding ``e``: ``h = fc [e; f] + bias``, ``n = norm(norm(h; post); input)``, and the result
is ``h + down silu(up [n; norm(e; input)])``. For a few rows the least that it can cost is to read the weights once; the
kernels read embeddings out of the table and never copy halves together.

It is one operator of torch, so that ``torch.compile`` leaves it whole and the number of rows, which a compiled model
does not know, decides in each call what runs.
"""

import torch
from torch import Tensor

from vllm_specext.kernels.pointers import HAS_TRITON
from vllm_specext.kernels.token_guided_fusion import naive
from vllm_specext.kernels.token_guided_fusion.naive import FusionWeights

FUSED_UP_TO_ROWS: dict[tuple[int, int], dict[torch.dtype, int]] = {(9, 0): {torch.bfloat16: 64}}
"""Most rows for which the kernels' own products beat cuBLAS, by compute capability and dtype. Products of more rows are
cuBLAS's, and the rest is the kernels'. To be filled by measurements only, and what is not listed runs in torch. (9, 0)
is of an H200, with Llama-3-8B's sizes (``benchmarks/results/nvidia-h200/suite.json``, part ``tgf``)."""


def fused_up_to_rows(device: torch.device, dtype: torch.dtype) -> int:
    """Most rows that the kernels' own products are used for; 0 where the kernels are not used at all."""
    if device.type != "cuda" or not HAS_TRITON:
        return 0
    return FUSED_UP_TO_ROWS.get(torch.cuda.get_device_capability(device), {}).get(dtype, 0)


def token_guided_fusion(
    features: Tensor, embeddings: Tensor, weights: FusionWeights, eps: float, token_ids: Tensor | None = None
) -> Tensor:
    """``[T, d]`` from ``features`` ``[T, d]`` and ``embeddings``: the table ``[V, d]`` with ``token_ids`` ``[T]``, or
    without them the rows themselves, ``[T, d]``.

    At least one row. Everything but the ids, which are int32 or int64, has the weights' dtype, and rows are contiguous.
    Ids must be from 0 to ``V - 1`` in every row, padding included: for another, torch raises (on a GPU, asserts), and
    the kernels take an embedding of zeros; nothing is read from outside of the table.
    """
    return _fusion(features, embeddings, token_ids, *weights, eps, residual=True)[1]


def token_guided_fusion_of_rank(
    features: Tensor, embeddings: Tensor, weights: FusionWeights, eps: float
) -> tuple[Tensor, Tensor]:
    """Compute one rank's part, two tensors ``[T, d]``: ``h``, which all ranks have, and a share of the MLP's output.
    The fusion is ``h`` plus the sum of the shares. ``features`` and ``embeddings``: rows ``[T, d]`` each."""
    hidden, share = _fusion(features, embeddings, None, *weights, eps, residual=False)
    return hidden, share


@torch.library.custom_op("vllm_specext::token_guided_fusion", mutates_args=())
def _fusion(
    features: Tensor,
    embeddings: Tensor,
    token_ids: Tensor | None,
    fc: Tensor,
    fc_bias: Tensor,
    post_norm: Tensor,
    input_norm: Tensor,
    up: Tensor,
    down: Tensor,
    eps: float,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    weights = FusionWeights(fc, fc_bias, post_norm, input_norm, up, down)
    arguments = features, embeddings, token_ids, weights, eps, residual
    most_rows = fused_up_to_rows(features.device, features.dtype)
    if not most_rows:
        return naive.token_guided_fusion(*arguments)
    from vllm_specext.kernels.token_guided_fusion import kernel  # a CPU has no use for Triton, nor time to import it

    if len(features) > most_rows:
        return kernel.with_library_products(*arguments)
    processors = torch.cuda.get_device_properties(features.device).multi_processor_count
    return kernel.token_guided_fusion(*arguments, processors=processors)


@_fusion.register_fake
def _(features: Tensor, *_: Tensor | float | None, **__: bool) -> tuple[Tensor, Tensor]:
    shape = features.shape
    return features.new_empty(shape), features.new_empty(shape)
