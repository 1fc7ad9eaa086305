"""The layers of an eager model on a CPU: one call of the wheel's own kernel each.

vLLM's eager path on a CPU computes a norm and SwiGLU in torch, operation by operation, takes several Python layers to
a product, and passes attention through torch's dispatcher. The wheel has fused kernels for the first two; for the
others the shorter way is vLLM's own too. On the bundled target that is a tenth of a step.

Every model of the process gets them as it is loaded, the target as well as a drafter, with drafts or without: verified
tokens are compared with those of plain decoding, so that both need the same arithmetic. The kernels round otherwise
than torch does; ``VLLM_SPECEXT_CPU_KERNELS=stock`` leaves every layer as vLLM made it. A compiled model is left alone:
its compiler fuses these operations, and cannot look into ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.errors import ConfigurationError

VARIABLE = "VLLM_SPECEXT_CPU_KERNELS"
FUSED, STOCK = "fused", "stock"
_MULTIPLE = 16
"""The kernels read that many elements at a time, and refuse a width that is no multiple of what they read."""

Forward = Callable[..., Any]


def are_wanted() -> bool:
    """Whether the environment leaves the layers to us. Raises ``ConfigurationError`` for a value that is neither."""
    value = os.environ.get(VARIABLE, FUSED)
    if value not in (FUSED, STOCK):
        raise ConfigurationError(f"{VARIABLE} is {value!r}, but must be {FUSED!r} or {STOCK!r}.")
    return value == FUSED


@replaces(
    "vllm.model_executor.model_loader.base_loader.BaseModelLoader.load_model",
    name="layers of eager models on a CPU",
    why="vLLM's eager layers on a CPU are torch, operation by operation, where its wheel has a kernel for the whole",
    how="wrapped: the layers of an eager model are given the shorter way after it was loaded, with drafts or without",
    upstream="vllm.kernels.vllm_c registers the fused norms for GPUs alone",
    until="vLLM's eager layers call its own CPU kernels",
    signature="self vllm_config model_config prefix",
)
def load_model(original: Callable) -> Callable:
    def load(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> nn.Module:
        from vllm.config import CompilationMode

        model: nn.Module = original(self, vllm_config, *args, **kwargs)
        if vllm_config.compilation_config.mode == CompilationMode.NONE and are_wanted():
            shorten(model)
        return model

    return load


@replaces(
    "vllm.model_executor.layers.layernorm.RMSNorm._forward_method",
    name="norms and SwiGLU of eager models on a CPU",
    why="vLLM's eager layers on a CPU are torch, operation by operation, where its wheel has a kernel for the whole",
    how="set on the instances whose arguments the kernels take, other calls go the old way",
    upstream="vllm.kernels.vllm_c registers the fused norms for GPUs alone",
    until="vLLM's eager layers call its own CPU kernels",
    kind="set",
    also=("vllm.model_executor.layers.activation.SiluAndMul._forward_method",),
)
@replaces(
    "vllm.model_executor.layers.linear.LinearBase.forward",
    name="products of eager models on a CPU",
    why="a product of one rank passes through several Python layers, which take as long as it does",
    how="replaced on the instances of unquantised products of one rank, by the call at the end of these layers",
    upstream="none known",
    until="vLLM's CPU products are one call",
    kind="set",
)
@replaces(
    "vllm.model_executor.layers.attention.attention.Attention.use_direct_call",
    name="attention of eager models on a CPU",
    why="vLLM hides attention from the compiler in a torch operation, which an eager model has no use for",
    how="set on the instances of eager models, as vLLM sets it on platforms that hide nothing",
    upstream="none known",
    until="vLLM calls attention directly where nothing is compiled",
    kind="set",
)
def shorten(model: nn.Module) -> None:
    """Give the layers of ``model``, which runs eagerly on a CPU, the shorter way, each where it can take it."""
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.linear import LinearBase

    module: Any
    for module in model.modules():
        # Not what the user switched off with --compilation-config, nor a subclass that computes something else.
        switched_on = getattr(module, "_forward_method", None) == getattr(module, "forward_cpu", None)
        if type(module) is RMSNorm and switched_on and _can_be_fused(module):
            module._forward_method = fused_norm(module)
        elif type(module) is SiluAndMul and switched_on:
            module._forward_method = fused_swiglu(module)
        elif isinstance(module, LinearBase) and _is_one_product(module):
            module.forward = one_product(module)
        elif type(module) is Attention:
            module.use_direct_call = True


@cache
def rounds_to_nearest(dtype: torch.dtype) -> bool:
    """Whether the kernels round results of this type as torch does. They cut off what bfloat16 cannot hold, where the
    processor has no instruction that rounds to it: a residual stream would shrink in every layer."""
    width = 4 * _MULTIPLE
    one, other = (torch.linspace(first, 3, width).to(dtype).view(1, -1) for first in (0.1, -7.7))
    total = one + other
    torch.ops._C.fused_add_rms_norm(one, other, torch.ones(width, dtype=dtype), 1e-6)
    return torch.equal(other, total)


def _can_be_fused(norm: Any) -> bool:
    return (
        norm.has_weight
        and norm.variance_size_override is None
        and norm.weight.numel() % _MULTIPLE == 0
        and rounds_to_nearest(norm.weight.dtype)
    )


def fused_norm(norm: Any) -> Forward:
    """The forward method of an ``RMSNorm``: of ``x`` ``[..., d]``, or of the sum of ``x`` and ``residual``, which is
    returned too; both may be overwritten, as vLLM's kernel does on a GPU."""
    rms_norm, fused_add_rms_norm = torch.ops._C.rms_norm.default, torch.ops._C.fused_add_rms_norm.default
    parameters, epsilon, stock = norm._parameters, norm.variance_epsilon, norm._forward_method

    def forward(x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        weight = parameters["weight"]
        if x.dtype != weight.dtype or (residual is not None and residual.dtype != x.dtype):
            return stock(x, residual)
        # A slice of a wider tensor is contiguous where it has one row. So others are copied, and not given to torch:
        # a row must not depend on how many are beside it.
        x = x.contiguous()
        if residual is None:
            out = torch.empty_like(x)
            rms_norm(out, x, weight, epsilon)
            return out
        residual = residual.contiguous()
        fused_add_rms_norm(x, residual, weight, epsilon)
        return x, residual

    return forward


def fused_swiglu(activation: Any) -> Forward:
    """The forward method of a ``SiluAndMul``: ``[..., 2 d]`` to ``[..., d]``."""
    silu_and_mul, stock = torch.ops._C.silu_and_mul.default, activation._forward_method

    def forward(x: Tensor) -> Tensor:
        width = x.shape[-1] // 2
        if width % _MULTIPLE or not rounds_to_nearest(x.dtype):
            return stock(x)
        out = x.new_empty((*x.shape[:-1], width))
        silu_and_mul(out, x.contiguous())
        return out

    return forward


def _is_one_product(linear: Any) -> bool:
    """Whether nothing comes before or after the product: no quantisation, no other rank, no bias to be returned."""
    from vllm.model_executor.layers import linear as layers

    kinds = (
        layers.ReplicatedLinear,
        layers.ColumnParallelLinear,
        layers.MergedColumnParallelLinear,
        layers.QKVParallelLinear,
        layers.RowParallelLinear,
    )
    return (
        type(linear) in kinds
        and type(linear.quant_method) is layers.UnquantizedLinearMethod
        and linear.tp_size == 1
        and not linear.skip_bias_add
        and hasattr(linear, "cpu_linear")
    )


def one_product(linear: Any) -> Forward:
    """The forward method of such a layer: ``[..., in]`` to ``[..., out]``, with ``None`` for a bias that is left out
    where the layer returns one."""
    parameters = linear._parameters

    if not linear.return_bias:
        return lambda x: linear.cpu_linear(x, parameters["weight"], parameters["bias"])
    return lambda x: (linear.cpu_linear(x, parameters["weight"], parameters["bias"]), None)
