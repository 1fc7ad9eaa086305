from types import SimpleNamespace
from typing import Any

from vllm_specext.cpu_runner.launches import for_launches

SEEN: list[Any] = []


def body(tokens: Any, stride: int, rows: Any, BLOCK: int, marks: Any = None) -> None:  # noqa: N803
    SEEN[:] = tokens, stride, rows, BLOCK, marks


def old_kernel(out_ptr: Any, out_stride: int, rows_ptr: Any, BLOCK: int) -> None: ...  # noqa: N803


def new_kernel(out_ptr: Any, marks_ptr: Any, out_stride: int, rows_ptr: Any, BLOCK: int) -> None: ...  # noqa: N803


def test_what_only_a_newer_kernel_takes_reaches_the_body_from_wherever_it_is() -> None:
    for_launches(new_kernel, body)("out", "marks", 3, "rows", BLOCK=64)
    assert SEEN == ["out", 3, "rows", 64, "marks"]
    for_launches(SimpleNamespace(arg_names=["out_ptr", "marks_ptr", "out_stride", "rows_ptr", "BLOCK"]), body)(
        "out", "marks", 3, "rows", 64
    )
    assert SEEN == ["out", 3, "rows", 64, "marks"]


def test_a_kernel_without_it_launches_the_body_itself() -> None:
    assert for_launches(old_kernel, body) is body
