"""The gather of all layers' keys and values against a loop over slots, layers and heads.

Every test here runs in torch and in C++, with the Triton kernel on a GPU, and with it under Triton's interpreter
(``cases/case_kv_gather.py``).
"""

from collections.abc import Callable

import pytest
import torch
from bodies import BODIES, choose
from cache_layouts import Layout, far_apart, halves, token_major, transposed_keys
from test_kv_compaction import PAGE_SIZE, PAGES, caches, copied_to_gpu, same
from torch import Tensor

from vllm_specext.kernels.kv_gather import gather
from vllm_specext.kernels.pointers import Caches

Gather = Callable[[list[Tensor], Tensor], Tensor]
SLOTS = PAGES * PAGE_SIZE


@pytest.fixture(params=BODIES)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gather:
    """The gather from tensors on the CPU, wherever it takes place."""
    choose(request.param, monkeypatch)
    if request.param != "GPU":
        return lambda views, slots: gather(Caches(views), slots)
    return lambda views, slots: gather(Caches(copied_to_gpu(view) for view in views), slots.cuda()).cpu()


@pytest.fixture(params=[halves, token_major, transposed_keys])
def layout(request: pytest.FixtureRequest) -> Layout:
    return request.param


def expected(views: list[Tensor], slots: Tensor) -> Tensor:
    """Token by token, layer by layer, head by head: the key, then the value."""
    zeros = torch.zeros(views[0].shape[3]).to(views[0].dtype)
    rows = [
        zeros if slot < 0 else view[slot // PAGE_SIZE, head, slot % PAGE_SIZE]
        for slot in slots.tolist()
        for keys, values in zip(views[::2], views[1::2], strict=True)
        for head in range(keys.shape[1])
        for view in (keys, values)
    ]
    return torch.stack(rows).view(len(slots), len(views) // 2, -1, 2, len(zeros))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("layers", "heads", "width"), [(1, 1, 8), (3, 2, 16), (2, 5, 6), (2, 3, 80)])
def test_rows_are_laid_out_by_layer_and_head_key_before_value(
    run: Gather, layers: int, heads: int, width: int, dtype: torch.dtype, layout: Layout
) -> None:
    views = caches(layout, dtype, (heads,) * layers, width)
    slots = torch.randint(0, SLOTS, (7,))
    gathered = run(views, slots)
    assert gathered.dtype == dtype
    assert gathered.shape == (7, layers, heads, 2, width)
    assert same(gathered, expected(views, slots))


def test_rows_come_from_caches_that_an_int32_does_not_count(run: Gather) -> None:
    views, slots = caches(far_apart, torch.int64), torch.randperm(SLOTS)
    assert same(run(views, slots), expected(views, slots))


def test_padded_tokens_are_zero_and_nothing_is_read_for_them(run: Gather, layout: Layout) -> None:
    views = caches(layout, torch.float32)
    for view in views:
        view[-1] = torch.nan  # where -1 would lead
    slots = torch.tensor([-1, 5, -(1 << 40), 17, -1])
    gathered = run(views, slots)
    assert same(gathered, expected(views, slots))
    assert not gathered[[0, 2, 4]].any()
    assert gathered[[1, 3]].any()


def test_no_tokens_give_no_rows(run: Gather, layout: Layout) -> None:
    assert run(caches(layout, torch.bfloat16), torch.empty(0, dtype=torch.int64)).shape == (0, 2, 2, 2, 8)


def test_slots_in_steps_are_read_right(run: Gather, layout: Layout) -> None:
    views = caches(layout, torch.bfloat16)
    slots = torch.arange(60)[::3]
    assert same(run(views, slots), expected(views, slots))


def test_keys_and_values_in_each_others_place_show(run: Gather, layout: Layout) -> None:
    views = caches(layout, torch.float32)
    slots = torch.arange(5)
    assert not same(run(views, slots), expected([views[1], views[0], *views[2:]], slots))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 6, 1024])
def test_all_layers_of_a_served_model_are_read_on_a_gpu(tokens: int) -> None:
    """Llama-3-8B's 32 layers; 1024 tokens are a piece of a prompt."""
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    cache = torch.randint(-128, 128, (32, 80, 8, 16, 512), dtype=torch.int8, device="cuda").view(torch.bfloat16)
    slots = torch.randperm(1280, device="cuda")[:tokens]
    gathered = gather(Caches(view for layer in cache for view in halves(layer)), slots)
    by_slot = cache.transpose(2, 3).flatten(1, 2).transpose(0, 1)
    assert same(gathered, by_slot[slots].unflatten(-1, (2, 128)))
