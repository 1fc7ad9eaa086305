"""Drafters with weights in float8, which take half the time to read.

Layers become so while vLLM loads them, which has methods for it. An output layer is most often the target's, which
verifies with it: the drafter gets a copy. A draft may be another than with the weights as they are, and never the
output.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.kernels.linear import init_fp8_linear_kernel
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    get_fp8_min_max,
    kFp8DynamicTokenSym,
    kFp8StaticChannelSym,
)
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.platforms import current_platform

from vllm_specext.errors import ConfigurationError

AT_ONCE = 16 << 20
"""Weights that are converted at once, each of which takes a few bytes in float32 meanwhile."""

SMALLEST = torch.finfo(torch.float32).tiny
"""Scale of a row of zeros."""


class Float8Head(nn.Module):
    """The rows ``[V, d]`` of an output layer that this rank has, as ``LogitsProcessor`` multiplies by them: in float8,
    with a scale for each, and for each row of features."""

    def __init__(self, head: Any, source: Callable[[], Any] | None = None) -> None:
        """``head``: a ``ParallelLMHead``, which stays as it is; ``source`` gives it once more, where it is the target's
        or made of it. Raises ``ConfigurationError`` where it is quantised."""
        super().__init__()
        self.source = source
        if not isinstance(head.quant_method, UnquantizedEmbeddingMethod | UnquantizedLinearMethod):
            raise ConfigurationError(
                "speculative-config key 'draft_lm_head_quantization' is 'fp8', but the output layer is quantised "
                f"already ({type(head.quant_method).__name__}); remove the key."
            )
        weight: Tensor = head.weight.detach()
        kernel = init_fp8_linear_kernel(
            activation_quant_key=kFp8DynamicTokenSym,
            weight_quant_key=kFp8StaticChannelSym,
            input_dtype=weight.dtype,
            out_dtype=weight.dtype,
            weight_shape=(weight.shape[0], weight.shape[1]),
            module_name="the drafter's output layer",
        )
        in_float8, scale = by_rows(weight)
        # Names and layouts are those of a linear layer's, which the kernel may lay out anew.
        self.weight = nn.Parameter(in_float8.t(), requires_grad=False)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)
        self.input_scale, self.logical_widths = None, [len(weight)]
        self.tp_size = head.tp_size
        kernel.process_weights_after_loading(self)
        self.quant_method = _Product(kernel)

    def renew(self) -> None:
        """Copy the weights once more, which are others by now; in place."""
        if self.source is not None:
            for own, new in zip(self.parameters(), Float8Head(self.source()).parameters(), strict=True):
                own.copy_(new)


def is_own_copy(module: nn.Module) -> bool:
    """Whether it is made of a layer that is not the target's and is no longer there."""
    return isinstance(module, Float8Head) and module.source is None


class _Product:
    """What ``LogitsProcessor`` asks of an output layer."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def apply(self, head: Float8Head, features: Tensor, bias: Tensor | None = None) -> Tensor:
        product: Tensor = self.kernel.apply_weights(head, features, bias)
        return product


def by_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight`` ``[V, d]`` in float8, and what its rows are to be multiplied by, ``[V, 1]`` float32."""
    low, high = get_fp8_min_max()
    found = torch.empty_like(weight, dtype=current_platform.fp8_dtype())
    scales = torch.empty(len(weight), 1, dtype=torch.float32, device=weight.device)
    rows = max(1, AT_ONCE // weight.shape[1])
    for first in range(0, len(weight), rows):
        some = weight[first : first + rows].float()
        scale = (some.abs().amax(dim=1, keepdim=True) / high).clamp(min=SMALLEST)
        scales[first : first + rows] = scale
        found[first : first + rows] = (some / scale).clamp(low, high).to(found.dtype)
    return found, scales
