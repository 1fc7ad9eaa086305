"""The Triton kernel of tree attention through every test of tree attention, in several splits."""

from functools import partial
from typing import Any

import pytest
from test_tree_attention import *  # noqa: F403
from test_tree_attention import MIXED, Case, close, make

from vllm_specext.kernels.tree_attention import kernel


def attend(*tensors: Any, scale: float, soft_cap: float = 0.0, sliding_window: int = 0, splits: int) -> None:
    options = {"soft_cap": soft_cap, "sliding_window": sliding_window, "splits": splits}
    kernel.tree_attention(*tensors, scale=scale, **options)


@pytest.fixture(autouse=True, params=[3])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the module's own: the kernel in so many splits."""
    monkeypatch.setattr(Case, "implementation", staticmethod(partial(attend, splits=request.param)))


@pytest.mark.parametrize("implementation", [1, 2, 7, 33], indirect=True)
@pytest.mark.parametrize("changes", [{}, {"soft_cap": 1.5, "sliding_window": 15}])
def test_any_number_of_splits_gives_the_same(changes: dict[str, Any]) -> None:
    """Also more than there are tiles, so that some have nothing to do."""
    close(make(**MIXED), **changes)


@pytest.mark.parametrize("implementation", [1, 3], indirect=True)
def test_rows_of_several_tiles_attend_as_those_of_one() -> None:
    """More rows times heads than one program takes."""
    close(make([70, 3, 40], [37, 20, 0], heads=8))
