"""The views that draft trees have of a CPU's pages, against what vLLM's own kernel writes there."""

import pytest
import torch
from torch import Tensor

# Loads the kernels for this CPU's instructions; naming a library might load a second one, which ends the process.
pytest.importorskip("vllm._custom_ops", exc_type=ImportError)

from vllm import _custom_ops as ops
from vllm.platforms import current_platform

from vllm_specext.cpu_runner.unsupported import PLAIN_PAGES
from vllm_specext.engine.verification.attention import pages

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="these are a CPU's pages")

PAGES, HEADS = 5, 2
UNTOUCHED = 7.0


def written(isa: str, dtype: torch.dtype, head_size: int, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """A cache after vLLM has written random tokens to random slots, slot -1 among them, and the keys and values
    ``[pages, Hkv, page size, D]`` that lie there."""
    random = torch.Generator().manual_seed(head_size + page_size)
    cache = torch.full((PAGES, HEADS, page_size, 2 * head_size), UNTOUCHED, dtype=dtype)
    slots = torch.randperm(PAGES * page_size, generator=random)[: 3 * page_size + 5]
    slots[[2, 9]] = -1
    new = torch.randn(2, len(slots), HEADS, head_size, generator=random).to(dtype)
    expected = torch.full((2, PAGES, HEADS, page_size, head_size), UNTOUCHED, dtype=dtype)
    kept = slots >= 0
    expected[:, slots[kept] // page_size, :, slots[kept] % page_size] = new[:, kept].transpose(0, 1)
    halves = cache.view(PAGES, HEADS, 2 * page_size, head_size).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(new[0], new[1], *halves, slots, isa)
    return cache, expected[0], expected[1]


@pytest.mark.parametrize("page_size", [32, 128])
@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("isa", PLAIN_PAGES)
def test_keys_and_values_lie_where_the_views_say(isa: str, dtype: torch.dtype, head_size: int, page_size: int) -> None:
    cache, keys, values = written(isa, dtype, head_size, page_size)
    seen_keys, seen_values = pages(cache)
    assert torch.equal(seen_keys, keys)
    assert torch.equal(seen_values, values)


def test_the_views_write_to_the_cache() -> None:
    cache, _, _ = written("vec", torch.float32, 64, 32)
    for view in pages(cache):
        view.zero_()
    assert not cache.any()


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="needs a CPU with AMX")
def test_pages_packed_for_amx_lie_otherwise() -> None:
    cache, keys, values = written("amx", torch.bfloat16, 64, 32)
    seen_keys, seen_values = pages(cache)
    assert not torch.equal(seen_keys, keys)
    assert not torch.equal(seen_values, values)
