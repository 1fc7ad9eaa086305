"""The most likely tokens against a stable sort, with ties, zeros of both signs, infinities and NaN.

Runs in C++, with the Triton kernels on a GPU, and with the kernels under Triton's interpreter
(``cases/case_best_tokens.py``). The torch code that they replace promises no order of ties.
"""

from collections.abc import Callable

import pytest
import torch
from bodies import GPU, choose, fill_new_memory
from torch import Tensor

from vllm_specext.kernels.best_tokens import best_token, best_tokens, native
from vllm_specext.tree import expansion as in_torch

Best = Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]]


def some(values: list[float]) -> Callable[[torch.Generator, tuple[int, ...]], Tensor]:
    return lambda random, shape: torch.tensor(values)[torch.randint(len(values), shape, generator=random)]


LOGITS = {
    "distinct": lambda random, shape: torch.randn(shape, generator=random) * 5,
    "tiny": lambda random, shape: torch.randn(shape, generator=random) * 1e-6,
    "three values": some([-1.5, 0.25, 3.0]),
    "zeros of both signs": some([0.0, -0.0]),
    "some -inf": some([-torch.inf, -torch.inf, -torch.inf, 1.0, -2.0]),
    "all -inf": some([-torch.inf]),
    "an inf": lambda random, shape: torch.randn(shape, generator=random).index_fill(-1, torch.tensor(2), torch.inf),
    "a NaN": lambda random, shape: torch.randn(shape, generator=random).index_fill(-1, torch.tensor(2), torch.nan),
}


@pytest.fixture(params=["torch", GPU])
def first(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Tensor], Tensor]:
    """``best_token``."""
    if request.param == "torch":
        return best_token
    choose(request.param, monkeypatch)

    def on_gpu(logits: Tensor) -> Tensor:
        wide = torch.empty_strided(logits.shape, logits.stride(), dtype=logits.dtype, device="cuda")
        return best_token(wide.copy_(logits)).cpu()

    return on_gpu


@pytest.fixture(params=["C++", GPU])
def best(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Best:
    choose(request.param, monkeypatch)
    if request.param == "C++":
        fill_new_memory(monkeypatch)
        assert native.takes(torch.zeros(1, 4), 2)
        return best_tokens
    from vllm_specext.kernels.best_tokens import kernel

    assert kernel.takes(torch.zeros(1, 4), 2)

    def on_gpu(logits: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.empty_strided(logits.shape, logits.stride(), dtype=logits.dtype, device="cuda")
        tokens, log_probs = best_tokens(wide.copy_(logits), k, sharpness.cuda())
        return tokens.cpu(), log_probs.cpu()

    return on_gpu


def check(best: Best, logits: Tensor, k: int) -> None:
    sharpness = torch.linspace(0.25, 8, logits[..., 0].numel()).view(logits.shape[:-1])
    tokens, log_probs = best(logits, k, sharpness)
    ordered = logits.float().sort(dim=-1, descending=True, stable=True)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, ordered.indices[..., :k])
    _, expected = in_torch.best_tokens(logits, k, sharpness)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, expected, rtol=1e-5, atol=1e-4)  # a few units in the last place of the sum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("logits", LOGITS)
def test_the_best_are_those_of_a_stable_sort(best: Best, logits: str, dtype: torch.dtype) -> None:
    made = LOGITS[logits](torch.Generator().manual_seed(0), (2, 3, 100)).to(dtype)
    for k in (1, 7):
        check(best, made, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("count", "k"), [(1, 1), (3, 3), (64, 64), (4096, 10), (4097, 10), (9000, 64)])
def test_the_best_are_found_in_one_block_and_in_several(best: Best, count: int, k: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(count)
    check(best, torch.randn(2, count, generator=random).to(dtype), k)
    check(best, LOGITS["three values"](random, (2, count)).to(dtype), k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("logits", LOGITS)
def test_the_very_best_is_the_first_of_the_largest(
    first: Callable[[Tensor], Tensor], logits: str, dtype: torch.dtype
) -> None:
    """So say numpy and torch. Over several blocks, and in rows of a wider buffer."""
    random = torch.Generator().manual_seed(3)
    for shape in ((2, 3, 100), (5, 9000)):
        wide = LOGITS[logits](random, shape).to(dtype)
        for made in (wide, wide[..., :67]):
            assert first(made).dtype == torch.int64
            assert first(made).tolist() == made.float().numpy().argmax(axis=-1).tolist()


@pytest.mark.parametrize("falls", [False, True])
def test_all_the_best_may_be_in_one_block(best: Best, falls: bool) -> None:
    logits = torch.arange(10000.0).log()[None]
    check(best, logits.flip(1) if falls else logits, 10)


def test_rows_may_be_cut_out_of_a_wider_buffer(best: Best) -> None:
    wide = torch.randn(4, 130, generator=torch.Generator().manual_seed(1))
    wide[:, 100:] = 50
    check(best, wide[:, :100], 5)
    check(best, wide[::2, :100], 5)


def test_another_logit_gives_another_token(best: Best) -> None:
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(2))
    changed = logits.clone()
    changed[0, 4999] = 9
    before, after = best(logits, 4, torch.ones(1)), best(changed, 4, torch.ones(1))
    assert after[0][0, 0] == 4999
    assert torch.equal(after[0][0, 1:], before[0][0, :3])
    assert (after[1][0, 1:] < before[1][0, :3]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "count"), [(1, 128256), (40, 128256), (160, 151936), (7, 262144)])
def test_large_vocabularies_on_a_gpu(rows: int, count: int, dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    logits = torch.randn(rows, count, generator=torch.Generator().manual_seed(0)).to(dtype)
    check(lambda made, k, sharpness: tuple(x.cpu() for x in best_tokens(made.cuda(), k, sharpness.cuda())), logits, 10)
    assert torch.equal(best_token(logits.cuda()), logits.cuda().argmax(dim=-1))


@pytest.mark.gpu
def test_captured_kernels_follow_the_logits() -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    logits = torch.randn(10, 32000, device="cuda", dtype=torch.bfloat16)
    sharpness = torch.full((10,), 1.5, device="cuda")
    best_tokens(logits, 10, sharpness)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = best_tokens(logits, 10, sharpness)
    logits.copy_(logits.flip(1))
    sharpness.fill_(3)
    graph.replay()
    for got, want in zip(captured, best_tokens(logits, 10, sharpness), strict=True):
        assert torch.equal(got, want)
