"""KV compaction against a loop over slots.

Every test here runs in torch and in C++, with the Triton kernel on a GPU, and with it under Triton's interpreter
(``cases/case_kv_compaction.py``).
"""

from collections.abc import Callable

import pytest
import torch
from bodies import BODIES, choose
from cache_layouts import Layout, far_apart, halves, token_major, transposed_keys
from torch import Tensor

from vllm_specext.kernels.kv_compaction import compact
from vllm_specext.kernels.pointers import Caches

PAGE_SIZE, PAGES, HEADS, WIDTH = 16, 12, 2, 8
LARGEST_COPY = 2**30
"""Bytes."""

Compact = Callable[[list[Tensor], Tensor, Tensor], None]


@pytest.fixture(params=BODIES)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compact:
    """Compaction of tensors on the CPU, wherever it takes place."""
    choose(request.param, monkeypatch)
    if request.param == "GPU":
        return on_gpu
    return lambda views, source, destination: compact(Caches(views), source, destination)


def on_gpu(views: list[Tensor], source: Tensor, destination: Tensor) -> None:
    there = [copied_to_gpu(view) for view in views]
    compact(Caches(there), source.cuda(), destination.cuda())
    for view, copy in zip(views, there, strict=True):
        view.copy_(copy)


def copied_to_gpu(view: Tensor) -> Tensor:
    """With the same strides, and what lies between."""
    if view.stride(3) != 1:
        pytest.skip("a CPU's pages")
    if view.untyped_storage().nbytes() > LARGEST_COPY:
        pytest.skip("a CPU's empty memory")
    storage = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())
    return storage.cuda().as_strided(view.shape, view.stride(), view.storage_offset())


@pytest.fixture(params=[halves, token_major, transposed_keys])
def layout(request: pytest.FixtureRequest) -> Layout:
    return request.param


def caches(
    layout: Layout, dtype: torch.dtype, heads: tuple[int, ...] = (HEADS, HEADS), width: int = WIDTH
) -> list[Tensor]:
    """Layers' keys and values, a number of its own in every place that the data type can tell apart."""
    views = []
    for count in heads:
        cache = torch.empty(PAGES, count, PAGE_SIZE, 2 * width, dtype=dtype)
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


def same(view: Tensor, want: Tensor) -> bool:
    """Bit by bit."""
    return torch.equal(view.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def check(run: Compact, views: list[Tensor], source: Tensor, destination: Tensor) -> None:
    expected = [moved(view, source, destination) for view in views]
    run(views, source, destination)
    for view, want in zip(views, expected, strict=True):
        assert same(view, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("seed", range(8))
def test_accepted_slots_move_and_all_others_stay(run: Compact, seed: int, dtype: torch.dtype, layout: Layout) -> None:
    check(run, caches(layout, dtype), *paths(seed))


@pytest.mark.parametrize(("width", "dtype"), [(80, torch.bfloat16), (3, torch.bfloat16), (5, torch.uint8)])
def test_rows_of_any_width_move(run: Compact, width: int, dtype: torch.dtype, layout: Layout) -> None:
    """Also those that words of eight bytes do not divide."""
    check(run, caches(layout, dtype, width=width), *paths(5))


def test_layers_of_different_sizes_move_together(run: Compact, layout: Layout) -> None:
    check(run, [*caches(layout, torch.bfloat16, (1, 3)), *caches(layout, torch.bfloat16, (4,), width=16)], *paths(4))


@pytest.mark.parametrize("seed", range(3))
def test_rows_move_in_caches_that_an_int32_does_not_count(run: Compact, seed: int) -> None:
    check(run, caches(far_apart, torch.int64), *paths(seed))


@pytest.mark.parametrize("seed", range(4))
def test_paths_longer_than_what_is_read_at_once_move(run: Compact, seed: int, layout: Layout) -> None:
    check(run, caches(layout, torch.float32), *paths(seed, levels=38))


def test_every_second_node_of_a_long_chain_moves(run: Compact, layout: Layout) -> None:
    """Nearly every slot that is written is one that is read as well."""
    slots = torch.randperm(PAGES * PAGE_SIZE).view(1, -1)
    check(run, caches(layout, torch.float32), slots[:, ::2], slots[:, : slots.shape[1] // 2])


def test_moving_in_place_in_ascending_order_gives_the_same() -> None:
    """What the interface promises to kernels."""
    for seed in range(50):
        source, destination = paths(seed)
        cache = caches(halves, torch.float32)[0]
        expected = moved(cache, source, destination)
        for old, new in zip(source.flatten().tolist(), destination.flatten().tolist(), strict=True):
            cache[new // PAGE_SIZE, :, new % PAGE_SIZE] = cache[old // PAGE_SIZE, :, old % PAGE_SIZE]
        assert torch.equal(cache, expected)


def test_a_path_along_the_first_nodes_moves_nothing(run: Compact, layout: Layout) -> None:
    source, _ = paths(1)
    views = caches(layout, torch.float32)
    before = [view.clone() for view in views]
    run(views, source, source)
    assert all(torch.equal(view, old) for view, old in zip(views, before, strict=True))


def test_equal_slots_are_not_looked_at(run: Compact, layout: Layout) -> None:
    """A padded row has no slot, and its neighbour may write to where -1 would lead."""
    last = PAGES * PAGE_SIZE - 1
    source, destination = torch.tensor([[3, last, -1], [-1, 1 << 40, 0]]), torch.tensor([[3, 1, -1], [-1, 1 << 40, 0]])
    views = caches(layout, torch.float32)
    expected = [moved(view, source[:1, :2], destination[:1, :2]) for view in views]
    run(views, source, destination)
    assert all(same(view, want) for view, want in zip(views, expected, strict=True))


def test_a_shifted_path_shows(run: Compact, layout: Layout) -> None:
    source, destination = paths(3)
    assert not torch.equal(source, destination)
    views = caches(layout, torch.float32)
    expected = moved(views[0], source, destination)
    run(views, source.roll(1, dims=1), destination)
    assert not torch.equal(views[0], expected)


def test_kernels_refuse_rows_that_are_not_dense() -> None:
    views = caches(transposed_keys, torch.float32)
    with pytest.raises(ValueError, match="cache 0 has its last axis in steps of 16; kernels need it dense"):
        _ = Caches(views).table


@pytest.mark.parametrize(
    ("width", "dtype", "word"),
    [
        (8, torch.float32, torch.int64),
        (80, torch.uint8, torch.int64),
        (6, torch.bfloat16, torch.int32),
        (3, torch.bfloat16, torch.int16),
        (5, torch.uint8, torch.uint8),
    ],
)
def test_words_are_the_widest_that_fit(width: int, dtype: torch.dtype, word: torch.dtype) -> None:
    assert Caches(caches(halves, dtype, width=width)).table.word == word


@pytest.mark.gpu
@pytest.mark.parametrize("requests", [1, 64])
def test_all_layers_of_a_served_model_move_on_a_gpu(requests: int) -> None:
    """Llama-3-8B's 32 layers; each request's path of 7 nodes in a tree of 61."""
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    cache = torch.randint(-128, 128, (32, 4 * requests, 8, 16, 512), dtype=torch.int8, device="cuda").view(
        torch.bfloat16
    )
    views = [view for layer in cache for view in halves(layer)]
    nodes = torch.rand(requests, 60, device="cuda").argsort(1)[:, :6].sort(1).values + 1
    first = 64 * torch.arange(requests, device="cuda")[:, None]
    expected = cache.clone()
    for request, path in enumerate((nodes + first).tolist()):
        for place, old in enumerate(path, 1):
            new = 64 * request + place
            expected[:, new // 16, :, new % 16] = cache[:, old // 16, :, old % 16]
    compact(Caches(views), nodes + first, first + torch.arange(1, 7, device="cuda"))
    assert torch.equal(cache.view(torch.int8), expected.view(torch.int8))
