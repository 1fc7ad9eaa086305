"""The Triton kernels of recurrent layers through every test of them."""

from importlib import import_module
from types import SimpleNamespace

import pytest
from test_recurrent import *  # noqa: F403
from test_recurrent import Kind, Rules


@pytest.fixture
def rules() -> Rules:
    def of(kind: Kind) -> SimpleNamespace:
        kernel, path_kernels = (import_module(f"{kind.rule.package}.{name}") for name in ("kernel", "path_kernels"))
        return SimpleNamespace(attend=kernel.attend, advance=path_kernels.advance)

    return of
