"""Runs vLLM's launch code twice, on its Triton kernel and on our body, and compares everything both wrote."""

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from vllm.triton_utils.dispatcher import KernelOverride

from vllm_specext.cpu_runner.install import kernel_bodies, replacements
from vllm_specext.cpu_runner.launches import for_launches

# Bodies by the end of their kernel's name that the negative controls put in place of ours.
WRONG: Mapping[str, Callable] = {}


@contextmanager
def bodies() -> Iterator[None]:
    """Put all bodies in place of their kernels."""
    planned: dict[tuple[Any, str], Callable] = dict(replacements())
    for name, body in kernel_bodies().items():
        module, attribute = name.rsplit(".", 1)
        owner = importlib.import_module(module)
        planned[owner, attribute] = for_launches(getattr(owner, attribute), body)
    for ending, body in WRONG.items():
        matching = [key for key in planned if f"{getattr(key[0], '__name__', '')}.{key[1]}".endswith(ending)]
        assert matching, f"no body named {ending}"
        planned.update(dict.fromkeys(matching, body))

    originals = {key: getattr(*key) for key in planned}
    try:
        for (owner, attribute), body in planned.items():
            is_kernel = attribute.endswith("_kernel")
            # The registry's own wrapper, so that arguments arrive as they do in a server.
            setattr(owner, attribute, KernelOverride(originals[owner, attribute], body) if is_kernel else body)
        yield
    finally:
        for (owner, attribute), original in originals.items():
            setattr(owner, attribute, original)


def assert_same(expected: Any, actual: Any, where: str = "", **tolerance: float) -> None:
    """Compare nested results: tensors exactly (floats within `tolerance`), everything else by ``==``."""
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype, where
        torch.testing.assert_close(
            actual,
            expected,
            rtol=tolerance.get("rtol", 0.0),
            atol=tolerance.get("atol", 0.0),
            equal_nan=True,
            msg=lambda message: f"{where}: {message}",
        )
    elif is_dataclass(expected):
        for field in fields(expected):
            name = f"{where}.{field.name}"
            assert_same(getattr(expected, field.name), getattr(actual, field.name), name, **tolerance)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
            assert_same(left, right, f"{where}[{index}]", **tolerance)
    elif not callable(expected):
        assert actual == expected, where


def assert_body_equals_kernel(launch: Callable[..., Any], *args: Any, **tolerance: float) -> None:
    """Call `launch` on two copies of `args` and compare its results and all arguments afterwards."""
    for_kernel, for_body = copy.deepcopy(args), copy.deepcopy(args)
    expected = launch(*for_kernel)
    with bodies():
        actual = launch(*for_body)
    assert_same(expected, actual, "result", **tolerance)
    assert_same(for_kernel, for_body, "argument", **tolerance)
