"""KV compaction against a loop over slots."""

import pytest
import torch
from cache_layouts import Layout, halves, token_major, transposed_keys
from torch import Tensor

from vllm_specext.kernels.kv_compaction import compact

PAGE_SIZE, PAGES, HEADS, WIDTH = 16, 12, 2, 8


def caches(layout: Layout, dtype: torch.dtype) -> list[Tensor]:
    """Two layers' keys and values, a number of its own in every place that the data type can tell apart."""
    views = []
    for _ in range(2):
        cache = torch.empty(PAGES, HEADS, PAGE_SIZE, 2 * WIDTH, dtype=dtype)
        for view in layout(cache):
            view.copy_(torch.randint(0, 200, view.shape))
            views.append(view)
    return views


def paths(seed: int, levels: int = 6, nodes: int = 40) -> tuple[Tensor, Tensor]:
    """``[3, levels + 1]`` slots: each request's tree lies over scattered pages, its path takes some of the nodes in
    ascending order, and where it has ended root goes to root."""
    random = torch.Generator().manual_seed(seed)
    pages = torch.randperm(PAGES, generator=random).view(3, -1)
    source, destination = [], []
    for request in range(3):
        first = int(torch.randint(0, PAGE_SIZE, (), generator=random))
        place = first + torch.arange(nodes + 1)
        slots = pages[request, place // PAGE_SIZE] * PAGE_SIZE + place % PAGE_SIZE
        length = int(torch.randint(0, levels + 1, (), generator=random))
        path = torch.zeros(levels + 1, dtype=torch.int64)
        path[1 : length + 1] = 1 + torch.randperm(nodes, generator=random)[:length].sort().values
        source.append(slots[path])
        destination.append(slots[torch.where(path > 0, torch.arange(levels + 1), 0)])
    return torch.stack(source), torch.stack(destination)


def moved(cache: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    result = cache.clone()
    for old, new in zip(source.flatten().tolist(), destination.flatten().tolist(), strict=True):
        result[new // PAGE_SIZE, :, new % PAGE_SIZE] = cache[old // PAGE_SIZE, :, old % PAGE_SIZE]
    return result


@pytest.mark.parametrize("layout", [halves, transposed_keys, token_major])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("seed", range(8))
def test_accepted_slots_move_and_all_others_stay(seed: int, dtype: torch.dtype, layout: Layout) -> None:
    source, destination = paths(seed)
    views = caches(layout, dtype)
    expected = [moved(view, source, destination) for view in views]
    compact(views, source, destination)
    for view, want in zip(views, expected, strict=True):
        assert torch.equal(view, want)


def test_moving_in_place_in_ascending_order_gives_the_same() -> None:
    """What the interface promises to kernels."""
    for seed in range(50):
        source, destination = paths(seed)
        cache = caches(halves, torch.float32)[0]
        expected = moved(cache, source, destination)
        for old, new in zip(source.flatten().tolist(), destination.flatten().tolist(), strict=True):
            cache[new // PAGE_SIZE, :, new % PAGE_SIZE] = cache[old // PAGE_SIZE, :, old % PAGE_SIZE]
        assert torch.equal(cache, expected)


def test_a_path_along_the_first_nodes_moves_nothing() -> None:
    source, _ = paths(1)
    views = caches(transposed_keys, torch.float32)
    before = [view.clone() for view in views]
    compact(views, source, source)
    assert all(torch.equal(view, old) for view, old in zip(views, before, strict=True))


def test_a_shifted_path_shows() -> None:
    source, destination = paths(3)
    assert not torch.equal(source, destination)
    views = caches(transposed_keys, torch.float32)
    expected = moved(views[0], source, destination)
    compact(views, source.roll(1, dims=1), destination)
    assert not torch.equal(views[0], expected)
