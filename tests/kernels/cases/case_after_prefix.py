"""Attention to a tree's nodes after attention to the prefix, in Triton's interpreter."""

import pytest
from bodies import fill_new_memory
from test_after_prefix import *  # noqa: F403
from test_after_prefix import attend
from test_tree_attention import Case


@pytest.fixture(autouse=True)
def implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the module's own."""
    fill_new_memory(monkeypatch)
    monkeypatch.setattr(Case, "implementation", staticmethod(attend))
