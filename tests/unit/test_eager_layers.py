"""The layers of eager models on a CPU against vLLM's own, and which layers are left alone."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vllm.config import CompilationConfig, CompilationMode, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.platforms import current_platform

from vllm_specext.cpu_runner import eager_layers
from vllm_specext.cpu_runner.eager_layers import (
    FUSED,
    STOCK,
    VARIABLE,
    are_wanted,
    load_model,
    rounds_to_nearest,
    shorten,
)
from vllm_specext.errors import ConfigurationError

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")

DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Data types, each with the relative error that two ways of rounding may differ by."""
SHAPES = [(1, 64), (5, 64), (0, 64), (2, 3, 64)]


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmConfig]:
    current_platform.import_kernels()
    monkeypatch.setattr(parallel_state, "_TP", SimpleNamespace(rank_in_group=0, world_size=1))
    eager = VllmConfig(compilation_config=CompilationConfig(mode=CompilationMode.NONE))
    with set_current_vllm_config(eager), torch.inference_mode():
        yield eager


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def norm(width: int = 64, dtype: torch.dtype = torch.float32, **given: Any) -> RMSNorm:
    made = RMSNorm(width, dtype=dtype, **given)
    if made.has_weight:
        made.weight.copy_(random(width, dtype=dtype, seed=9))
    return made


def shortened(module: nn.Module) -> Any:
    shorten(nn.ModuleList([module]))
    return module


def is_ours(module: Any) -> bool:
    forward = module.forward if isinstance(module, LinearBase) else module._forward_method
    return bool(forward.__module__ == eager_layers.__name__)


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=DTYPES[found.dtype], atol=DTYPES[found.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sliced", [False, True])
def test_norms_are_those_of_vllms_layer(shape: tuple[int, ...], dtype: torch.dtype, sliced: bool) -> None:
    layer = shortened(norm(dtype=dtype))
    assert is_ours(layer) == rounds_to_nearest(dtype)
    x, residual = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    expected, (summed, total) = layer.forward_native(x), layer.forward_native(x.clone(), residual.clone())
    if sliced:  # of wider tensors, as queries are of the product that has keys and values too
        x, residual = (torch.cat((each, each), -1)[..., :64] for each in (x, residual))
    given = x.clone(memory_format=torch.preserve_format)
    assert_close(layer(x), expected)
    assert torch.equal(x, given)
    found, kept = layer(x, residual)
    assert_close(found, summed)
    assert torch.equal(kept, total)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    layer, wide = shortened(norm()), random(5, 128)
    rows = layer(wide[:, :64])
    assert all(torch.equal(rows[place], layer(wide[place : place + 1, :64])[0]) for place in range(5))
    # Which is what is at stake: torch's way rounds otherwise.
    assert not torch.equal(rows, layer.forward_native(wide[:, :64]))


def test_types_that_the_kernels_do_not_round_to_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds_to_nearest(torch.float32)
    assert rounds_to_nearest(torch.float16)
    monkeypatch.setattr(eager_layers, "rounds_to_nearest", lambda dtype: False)
    x, layer, activation = random(3, 64), shortened(norm()), shortened(SiluAndMul())
    assert not is_ours(layer)
    assert torch.equal(activation(x), activation.forward_native(x))


def test_a_kernel_that_cuts_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
        total = x.float() + residual.float()
        residual.copy_((total.view(torch.int32) & -(1 << 16)).view(torch.float32))

    kernels = SimpleNamespace(fused_add_rms_norm=cut_off)
    monkeypatch.setattr(eager_layers.torch.ops, "_C", kernels)
    assert not rounds_to_nearest.__wrapped__(torch.bfloat16)


class OwnNorm(RMSNorm):
    pass


@pytest.mark.parametrize(
    "layer",
    [
        lambda: norm(60),
        lambda: norm(has_weight=False),
        lambda: norm(var_hidden_size=32),
        lambda: GemmaRMSNorm(64),
        lambda: OwnNorm(64),
    ],
    ids=["width", "no weight", "part of the width", "Gemma", "subclass"],
)
def test_norms_that_the_kernel_does_not_compute_are_left_alone(layer: Any) -> None:
    made = shortened(layer())
    assert not is_ours(made)
    x = random(3, made.weight.shape[0])
    assert torch.equal(made(x), made.forward_native(x))


def test_a_norm_whose_weight_has_another_type_goes_the_old_way() -> None:
    layer = shortened(norm(dtype=torch.float32))
    x = random(3, 64, dtype=torch.bfloat16)
    assert torch.equal(layer(x), layer.forward_native(x))
    mixed = layer(x, x.float())
    assert torch.equal(mixed[0], layer.forward_native(x, x.float())[0])


def test_what_the_user_switched_off_stays_off() -> None:
    off = VllmConfig(compilation_config=CompilationConfig(mode=CompilationMode.NONE, custom_ops=["all", "-rms_norm"]))
    with set_current_vllm_config(off):
        assert not is_ours(shortened(norm()))
        assert is_ours(shortened(SiluAndMul()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_swiglu_is_that_of_vllms_layer(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = shortened(SiluAndMul())
    assert is_ours(layer)
    x = random(*shape, dtype=dtype)
    assert_close(layer(x), layer.forward_native(x))
    wide = torch.cat((x, x), -1)
    assert torch.equal(layer(wide[..., :64]), layer(x))


def test_swiglu_of_another_width_goes_the_old_way() -> None:
    layer, x = shortened(SiluAndMul()), random(3, 20)
    assert torch.equal(layer(x), layer.forward_native(x))


PRODUCTS: dict[str, Any] = {
    "replicated": lambda **given: ReplicatedLinear(64, 32, **given),
    "column": lambda **given: ColumnParallelLinear(64, 32, **given),
    "merged": lambda **given: MergedColumnParallelLinear(64, [16, 16], **given),
    "qkv": lambda **given: QKVParallelLinear(64, 16, 2, 1, **given),
    "row": lambda **given: RowParallelLinear(64, 32, **given),
}


def product(name: str, **given: Any) -> Any:
    made = PRODUCTS[name](**({"bias": False} | given))
    for place, parameter in enumerate(made.parameters()):
        parameter.copy_(random(*parameter.shape, seed=place))
    made.quant_method.process_weights_after_loading(made)
    return made


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("given", [{}, {"bias": True}, {"return_bias": False}], ids=str)
def test_products_are_those_of_vllms_layer(name: str, given: dict[str, Any]) -> None:
    layer, x = product(name, **given), random(5, 64)
    expected = layer(x)
    assert not is_ours(layer)
    shortened(layer)
    assert is_ours(layer)
    found = layer(x)
    if given.get("return_bias", True):
        (found, bias), (expected, none) = found, expected
        assert bias is none is None
    assert torch.equal(found, expected)


def more_than_a_product(change: str) -> Any:
    layer = product("row", bias=True, skip_bias_add=change == "bias apart")
    if change == "ranks":
        layer.tp_size = 2
    elif change == "quantised":
        layer.quant_method = object()
    elif change == "not packed":
        del layer.cpu_linear
    elif change == "subclass":
        layer.__class__ = type("Own", (RowParallelLinear,), {})
    return layer


@pytest.mark.parametrize("change", ["ranks", "quantised", "bias apart", "not packed", "subclass"])
def test_layers_that_are_more_than_a_product_are_left_alone(change: str) -> None:
    assert not is_ours(shortened(more_than_a_product(change)))


@pytest.mark.parametrize(
    ("mode", "value", "changed"),
    [
        (CompilationMode.NONE, None, True),
        (CompilationMode.NONE, FUSED, True),
        (CompilationMode.NONE, STOCK, False),
        (CompilationMode.DYNAMO_TRACE_ONCE, None, False),
    ],
)
def test_models_are_changed_as_they_are_loaded_if_they_are_eager_and_the_environment_allows_it(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch, mode: CompilationMode, value: str | None, changed: bool
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    config.compilation_config.mode = mode
    layer = norm()
    load = load_model(lambda self, vllm_config, model_config: nn.ModuleList([layer]))
    assert list(load(None, config, model_config=None)) == [layer]
    assert is_ours(layer) == changed


def test_a_value_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ConfigurationError, match="VLLM_SPECEXT_CPU_KERNELS is 'fast', but must be 'fused' or 'stock'"):
        are_wanted()
