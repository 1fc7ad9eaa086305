"""Token-guided fusion against its formula in float64, with NaN wherever nothing may be read.

The tests run in torch, with the Triton kernels on a GPU, and with the kernels under Triton's interpreter
(``cases/case_token_guided_fusion.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from vllm_specext.kernels.token_guided_fusion import FusionWeights, naive
from vllm_specext.methods.griffin.model import TokenGuidedFusion

EPS = 1e-5
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""Of results of size 1, against float64: some units in the last place, rounded at seven points."""
NAN = float("nan")


def surrounded(x: Tensor) -> Tensor:
    """A copy with NaN after every row and after the last one."""
    room = x.new_full((len(x) + 3, x.shape[1] + 16), NAN)
    room[: len(x), : x.shape[1]] = x
    return room[: len(x), : x.shape[1]]


@dataclass
class Case:
    features: Tensor
    table: Tensor
    token_ids: Tensor
    weights: FusionWeights
    implementation: ClassVar[Callable[..., tuple[Tensor, Tensor]]] = staticmethod(naive.token_guided_fusion)
    device: ClassVar[str] = "cpu"

    def fuse(self, *, gathered: bool = False, **changes: Tensor) -> Tensor:
        return self._run(self.weights._replace(**changes), gathered, residual=True)[1]

    def fuse_as_rank(self, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        up, down = (
            surrounded(x) for x in (self.weights.up.chunk(ranks)[rank], self.weights.down.chunk(ranks, 1)[rank])
        )
        return self._run(self.weights._replace(up=up, down=down), gathered=False, residual=False)

    def _run(self, weights: FusionWeights, gathered: bool, residual: bool) -> tuple[Tensor, Tensor]:
        embeddings = surrounded(self.table[self.token_ids]) if gathered else self.table
        ids = None if gathered else self.token_ids
        return type(self).implementation(self.features, embeddings, ids, weights, EPS, residual)

    def expected(self, *, norms: int = 2) -> tuple[Tensor, Tensor]:
        """Hidden state and fusion in float64, without concatenations."""
        w = FusionWeights(*(x.double() for x in self.weights))
        f, e = self.features.double(), self.table[self.token_ids].double()
        d = f.shape[1]
        hidden = e @ w.fc[:, :d].T + f @ w.fc[:, d:].T + w.fc_bias
        normed = self._norm(hidden, w.post_norm)
        if norms == 2:
            normed = self._norm(normed, w.input_norm)
        expanded = normed @ w.up[:, :d].T + self._norm(e, w.input_norm) @ w.up[:, d:].T
        return hidden, hidden + (expanded / (1 + (-expanded).exp())) @ w.down.T

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().sum(dim=1, keepdim=True) / x.shape[1] + EPS).sqrt() * weight


@pytest.fixture(autouse=True)
def _unwritten_memory_is_nan() -> Any:
    torch.use_deterministic_algorithms(True, warn_only=True)  # cuBLAS would raise
    assert torch.ones(1).new_empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def kernel_path(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """``products``, with Triton's for as many processors as the GPU has, or ``library``, with cuBLAS's."""
    from vllm_specext.kernels.token_guided_fusion import kernel

    if name == "library":
        return kernel.with_library_products
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    return partial(kernel.token_guided_fusion, processors=processors)


ON_GPU = [pytest.param(name, marks=pytest.mark.gpu, id=f"GPU-{name}") for name in ("products", "library")]


@pytest.fixture(autouse=True, params=["torch", *ON_GPU])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "torch":
        pytest.importorskip("triton")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        monkeypatch.setattr(Case, "device", "cuda")
        monkeypatch.setattr(Case, "implementation", staticmethod(kernel_path(request.param)))


def make(rows: int, width: int = 64, expanded: int = 96, dtype: torch.dtype = torch.float32) -> Case:
    """Random, of results of about size 1. The table's rows that no token has are NaN."""
    random = torch.Generator(Case.device).manual_seed(rows + width + expanded)

    def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        return (torch.randn(shape, generator=random, device=Case.device) * scale + mean).to(dtype)

    token_ids = torch.randint(0, 50, (rows,), generator=random, dtype=torch.int32, device=Case.device)
    table = torch.full((50, width + 16), NAN, device=Case.device, dtype=dtype)[:, :width]
    used = token_ids.unique()
    table[used] = normal(len(used), width)
    weights = FusionWeights(
        fc=surrounded(normal(width, 2 * width, scale=(2 * width) ** -0.5)),
        fc_bias=normal(width),
        post_norm=normal(width, scale=0.3, mean=2.0),
        input_norm=normal(width, scale=0.3, mean=1.0),
        up=surrounded(normal(expanded, 2 * width, scale=(2 * width) ** -0.5)),
        down=surrounded(normal(width, expanded, scale=expanded**-0.5)),
    )
    return Case(surrounded(normal(rows, width)), table, token_ids, weights)


def close(actual: Tensor, expected: Tensor) -> bool:
    """Not a number is not close."""
    return bool((actual.double() - expected).abs().max() < TOLERANCE[actual.dtype])


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 33, 65, 129])
def test_any_number_of_rows(rows: int) -> None:
    case = make(rows)
    assert close(case.fuse(), case.expected()[1])


@pytest.mark.parametrize(("width", "expanded"), [(64, 40), (80, 200), (100, 72), (168, 1000), (77, 131), (2880, 88)])
def test_widths_need_not_be_those_of_tiles(width: int, expanded: int) -> None:
    case = make(3, width, expanded)
    assert close(case.fuse(), case.expected()[1])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [2, 40])
def test_data_types(dtype: torch.dtype, rows: int) -> None:
    case = make(rows, 192, 336, dtype)
    assert close(case.fuse(), case.expected()[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounds_where_torch_rounds(dtype: torch.dtype) -> None:
    """Sums in another order change a few roundings by one unit, so that nearly all results are the same bits; with one
    rounding more or less on the way, three quarters of them are at most."""
    case = make(20, 192, 336, dtype)
    specified = naive.token_guided_fusion(case.features, case.table, case.token_ids, case.weights, EPS, True)[1]
    assert (case.fuse() == specified).float().mean() > 0.85


@pytest.mark.parametrize("rows", [3, 17])
def test_embeddings_may_have_been_gathered(rows: int) -> None:
    case = make(rows)
    assert torch.equal(case.fuse(gathered=True), case.fuse())


@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_token_ids_are_of_either_type(id_type: torch.dtype) -> None:
    case = make(5)
    case.token_ids = case.token_ids.to(id_type)
    assert close(case.fuse(), case.expected()[1])


@pytest.mark.parametrize(("rows", "ranks"), [(3, 2), (20, 3)])
def test_ranks_add_up_to_the_whole(rows: int, ranks: int) -> None:
    case = make(rows, expanded=96)
    hidden, result = case.expected()
    parts = [case.fuse_as_rank(rank, ranks) for rank in range(ranks)]
    assert all(torch.equal(part[0], parts[0][0]) for part in parts)
    assert close(parts[0][0], hidden)
    shares = torch.stack([part[1] for part in parts])
    assert close(parts[0][0] + shares.sum(dim=0), result)
    assert not close(parts[0][0] + shares[0], result)


def test_a_run_repeats_the_bits_of_the_run_before() -> None:
    case = make(7, 192, 336, torch.bfloat16)
    assert torch.equal(case.fuse(), case.fuse())


def test_the_plain_drafter_fuses_the_same() -> None:
    case = make(9)
    shape: Any = SimpleNamespace(hidden_size=64, tgf_size=96, rms_norm_eps=EPS)
    module = TokenGuidedFusion(shape).to(Case.device)
    parameters = (
        module.fc.weight, module.fc.bias, module.post_attention_layernorm.weight, module.mlp.input_layernorm.weight,
        module.mlp.up_proj.weight, module.mlp.down_proj.weight,
    )  # fmt: skip
    with torch.no_grad():
        for parameter, weight in zip(parameters, case.weights, strict=True):
            parameter.copy_(weight)
        expected = module(case.features, case.table[case.token_ids])
    assert close(case.fuse(), expected.double())


@pytest.mark.parametrize("name", ["fc", "up"])
def test_swapped_halves_show(name: str) -> None:
    case = make(6)
    swapped = torch.cat(getattr(case.weights, name).chunk(2, dim=1)[::-1], dim=1)
    assert not close(case.fuse(**{name: swapped}), case.expected()[1])


def test_a_missing_second_norm_shows() -> None:
    case = make(6)
    assert not close(case.fuse(), case.expected(norms=1)[1])


@pytest.mark.parametrize("name", ["fc", "fc_bias", "post_norm", "input_norm", "up", "down"])
def test_a_nan_in_any_weight_shows(name: str) -> None:
    case = make(2)
    spoilt = getattr(case.weights, name).clone()
    spoilt.view(-1)[-1] = NAN
    assert case.fuse(**{name: spoilt}).isnan().any()


def test_a_wrong_token_changes_its_row_only() -> None:
    case = make(20)
    expected = case.fuse()
    row = int((case.token_ids != case.token_ids[0]).nonzero()[0])
    case.token_ids[row] = case.token_ids[0]
    assert (case.fuse() != expected).any(dim=1).nonzero().flatten().tolist() == [row]
