"""Completes the Triton interpreter where it stops short of a GPU, before vLLM is imported. Test code only."""

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
import triton.language as tl
import triton.language.extra.libdevice as libdevice
import triton.runtime.interpreter as interpreter

_builder = interpreter.InterpreterBuilder
_masked_store, _masked_load = _builder.create_masked_store, _builder.create_masked_load


def _boolean(mask: interpreter.TensorHandle) -> interpreter.TensorHandle:
    """``mask & scalar`` becomes an integer in the interpreter, and numpy would take it for indices."""
    return interpreter.TensorHandle(mask.data.astype(np.bool_), mask.dtype)


_builder.create_masked_store = lambda self, ptrs, value, mask, *rest: _masked_store(
    self, ptrs, value, _boolean(mask), *rest
)
_builder.create_masked_load = lambda self, ptrs, mask, other, *rest: _masked_load(
    self, ptrs, _boolean(mask), other, *rest
)
_dot = _builder.create_dot


def _wide(handle: interpreter.TensorHandle) -> interpreter.TensorHandle:
    """The interpreter holds bfloat16 as 16-bit integers, and its product would be one of those."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


_builder.create_dot = lambda self, a, b, *rest: _dot(self, _wide(a), _wide(b), *rest)
# Device-library functions are empty in the interpreter and return None.
libdevice.log1p = lambda x: tl.log(1.0 + x)
libdevice.isnan = lambda x: x != x
_patch_lang = interpreter._patch_lang


@cache
def _languages(fn: Any) -> list[Any]:
    return [module for module in (tl, tl.core) if any(module is value for value in fn.__globals__.values())]


def _patch_lang_once(fn: Any) -> Any:
    """Where one kernel function calls another, the interpreter looks through all of the language again for what to
    replace, though the launch has replaced it. That was a fifth of the cases' time."""
    if (languages := _languages(fn)) and not any(tl.core.is_builtin(language.load) for language in languages):
        return interpreter._LangPatchScope()
    return _patch_lang(fn)


interpreter._patch_lang = _patch_lang_once

import sanitizer  # noqa: E402
import vllm.v1.worker.cpu.shm  # noqa: E402, F401 - lets vLLM's pinned buffers live in plain memory
from hypothesis import Phase, settings  # noqa: E402

sanitizer.install()

# The interpreter needs milliseconds per launch; the examples are the same in every run.
settings.register_profile(
    "interpreter",
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # minimising a failure would take minutes
)
settings.load_profile("interpreter")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--each", type=int, default=None, help="most cases of a function, spread evenly; all when absent")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most = config.getoption("--each")
    if most is None:
        return
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {own[(2 * place + 1) * len(own) // (2 * most)].nodeid for own in cases.values() for place in range(most)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]
