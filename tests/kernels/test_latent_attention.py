"""Tree attention over caches that hold one latent vector and a rotary part for each token, as targets with multi-head
latent attention have them: the keys of all heads, whose first numbers are the values.

Every test here runs wherever those of ``test_tree_attention.py`` do.
"""

from typing import Any

import pytest
import torch
from cache_layouts import latent
from test_tree_attention import MIXED, Case, close, implementation, make  # noqa: F401


def make_latent(row_lens: list[int], prefix_lens: list[int], **shape: Any) -> Case:
    """All heads share the keys, of 64 numbers and 16 more unless there are others in ``shape``."""
    further = shape.pop("further", 16)
    usual: dict[str, Any] = {"kv_heads": 1, "head_size": 64 + further, "layout": latent(further)}
    return make(row_lens, prefix_lens, **(usual | shape))


@pytest.mark.parametrize(("size", "further"), [(64, 16), (96, 32), (256, 32), (512, 64)])
@pytest.mark.parametrize("page_size", [16, 64])
def test_rows_see_the_first_numbers_of_the_keys(size: int, further: int, page_size: int) -> None:
    close(
        make_latent(**MIXED, head_size=size + further, further=further, page_size=page_size),
        tolerance=max(1e-5, size * 5e-8),
    )


@pytest.mark.parametrize("heads", [1, 3, 16, 40])
def test_any_number_of_heads_shares_them(heads: int) -> None:
    close(make_latent(**MIXED, heads=heads))


@pytest.mark.parametrize("drafted", [6, 40])
def test_rows_of_a_drafted_level_are_the_last_nodes_of_a_latent_cache(drafted: int) -> None:
    close(make_latent([10, 10, 10], [20, 5, 61], drafted=drafted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_latent_vectors_in_half_precision_round_but_do_not_drift(dtype: torch.dtype) -> None:
    close(make_latent(**MIXED, dtype=dtype), tolerance=2e-2 if dtype == torch.bfloat16 else 3e-3)


def test_the_further_numbers_are_of_the_keys_alone() -> None:
    """Each of them changes scores."""
    case = make_latent(**MIXED)
    before = case.attend()
    for number in (64, 79):
        case.query[:, :, number] += 1
        changed = (case.attend() - before)[: case.rows.num_rows].abs().amax(dim=(1, 2)) > 1e-3
        assert changed.float().mean() > 0.8  # rows that see only themselves have one weight, 1
        close(case)


def test_a_nan_of_a_latent_vector_is_not_hidden() -> None:
    case = make_latent([9, 12], [30, 8])
    case.keys[case.rows.block_table[1, 0].long(), 0, 3] = torch.nan
    spoilt = case.attend().isnan().any(dim=2)
    assert spoilt[9:21].all()
    assert spoilt.sum() == 12 * 4
