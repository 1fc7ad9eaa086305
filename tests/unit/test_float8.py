"""Weights of drafters in float8: how they are made, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.platforms import current_platform

from vllm_specext.engine import float8
from vllm_specext.engine.drafting import float8_head
from vllm_specext.errors import ConfigurationError
from vllm_specext.options.check import parse
from vllm_specext.options.stock import Eagle3TreeOptions, EagleTreeOptions
from vllm_specext.options.trees import GriffinOptions, MoAOptions

LAYERS, HEAD = {"quantization": "fp8_per_channel"}, {"draft_lm_head_quantization": "fp8"}


def options(own: dict[str, str], kind: Any = GriffinOptions) -> Any:
    return parse(kind, {"method": kind.model_fields["method"].default, "model": "folder"} | own)


def target(dtype: torch.dtype, head: torch.dtype | None = None) -> Any:
    return SimpleNamespace(dtype=dtype, head_dtype=head or dtype)


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_each_row_has_its_own_scale(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(float8_head, "AT_ONCE", 64 * rows_at_once)
    sizes = torch.tensor([1e-6, 1.0, 3e4, 0.0, 2.0, 1e-3, 5.0])[:, None]
    weight = (torch.randn(7, 64, generator=torch.Generator().manual_seed(0)) * sizes).bfloat16()
    found, scale = float8_head.by_rows(weight)
    assert (found.dtype, scale.dtype, scale.shape) == (torch.float8_e4m3fn, torch.float32, (7, 1))
    assert found.float().isfinite().all()
    back = found.float() * scale
    assert back[3].eq(0).all()
    others = [0, 1, 2, 4, 5, 6]
    # Three bits of mantissa: a sixteenth of a number, and for small ones a part of the smallest.
    error = (back - weight.float()).abs()[others]
    assert (error <= weight.float().abs()[others] / 16 + scale[others] / 512).all()
    assert found.float().abs().amax(dim=1)[others].eq(448).all()


@pytest.mark.parametrize("own", [LAYERS, HEAD, LAYERS | HEAD])
@pytest.mark.parametrize("kind", [GriffinOptions, Eagle3TreeOptions, EagleTreeOptions])
def test_float8_is_for_targets_in_16_bits(own: dict[str, str], kind: Any) -> None:
    asked = options(own, kind)
    float8.check(asked, target(torch.bfloat16))
    float8.check(asked, target(torch.float16))
    with pytest.raises(ConfigurationError) as refused:
        float8.check(asked, target(torch.float32))
    key, value = next(iter(own.items()))
    assert str(refused.value) == (
        f"speculative-config key '{key}' is '{value}', but the target's weights are in float32; allowed beside float8 "
        "are bfloat16 and float16 (--dtype)."
    )
    float8.check(options({}, kind), target(torch.float32))


def test_an_output_layer_of_another_type_than_the_weights_is_refused() -> None:
    model = target(torch.bfloat16, torch.float32)
    float8.check(options(LAYERS), model)
    with pytest.raises(ConfigurationError, match=r"in float32 \(head_dtype\); allowed is bfloat16"):
        float8.check(options(LAYERS | HEAD), model)


def test_gpus_without_float8_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    for capability, fits in ((80, False), (86, False), (89, True), (90, True)):
        monkeypatch.setattr(
            type(current_platform), "has_device_capability", lambda *args, has=capability: args[-1] <= has
        )
        if fits:
            float8.check(options(LAYERS | HEAD), target(torch.bfloat16))
            continue
        with pytest.raises(ConfigurationError, match=r"'quantization' is .* a compute capability of 8\.9 or more"):
            float8.check(options(LAYERS | HEAD), target(torch.bfloat16))


@pytest.mark.parametrize(
    ("kind", "own", "wrong"),
    [
        (GriffinOptions, {"quantization": "fp8"}, "'quantization' is 'fp8'"),
        (GriffinOptions, {"draft_lm_head_quantization": "nvfp4"}, "'draft_lm_head_quantization' is 'nvfp4'"),
        (MoAOptions, LAYERS, "'quantization' is unknown for method 'moa'"),
    ],
)
def test_what_was_not_tried_is_refused(kind: Any, own: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        options(own, kind)


def test_an_output_layer_that_is_quantised_already_is_refused() -> None:
    head = SimpleNamespace(weight=torch.zeros(4, 4), quant_method=SimpleNamespace(), tp_size=1)
    with pytest.raises(ConfigurationError, match=r"quantised already \(SimpleNamespace\); remove the key"):
        float8_head.Float8Head(head)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_copy_multiplies_by_what_it_holds(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=random).to(dtype)
    features = torch.randn(5, 64, generator=random).to(dtype)
    whole = SimpleNamespace(weight=weight, quant_method=UnquantizedEmbeddingMethod(), tp_size=1)
    with set_current_vllm_config(VllmConfig()):
        head = float8_head.Float8Head(whole)
    found = head.quant_method.apply(head, features)
    rows, scale = float8_head.by_rows(weight)
    expected = features.float() @ (rows.float() * scale).t()
    assert found.dtype == dtype
    # Features are converted, too.
    assert (found.float() - expected).norm() < 0.05 * expected.norm()
