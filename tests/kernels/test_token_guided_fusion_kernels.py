"""Token-guided fusion's Triton kernels compile for GPUs; when they are used, as an operator of torch, and on a GPU."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compiling import PROCESSORS, Launched, compiled  # noqa: F401
from test_token_guided_fusion import (
    EPS,
    ON_GPU,
    _unwritten_memory_is_nan,  # noqa: F401
    close,
    implementation,  # noqa: F401
    make,
)
from torch import Tensor

from vllm_specext.kernels import token_guided_fusion as fusion
from vllm_specext.kernels.token_guided_fusion import FusionWeights, kernel, naive

once = pytest.mark.parametrize("implementation", ["torch"], indirect=True)
"""What does not run the implementation has no need of all of them."""


def zeros(rows: int, width: int, expanded: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Features, table, ids, weights, and the rest of the arguments."""
    shapes = (width, 2 * width), (width,), (width,), (width,), (expanded, 2 * width), (width, expanded)
    weights = FusionWeights(*(torch.zeros(shape, dtype=dtype) for shape in shapes))
    features, table = torch.zeros(rows, width, dtype=dtype), torch.zeros(9, width, dtype=dtype)
    return features, table, torch.zeros(rows, dtype=torch.int32), weights, EPS, True


@once
@pytest.mark.parametrize(
    ("rows", "width", "expanded", "dtype"),
    [
        *((rows, 4096, 11008, torch.bfloat16) for rows in (1, 20, 60, 512)),  # Llama-3-8B
        (1, 4096, 11008 // 8, torch.float16),
        (20, 2880, 360, torch.float32),
    ],
)
def test_kernels_compile_and_fit(
    compiled: tuple[int, Launched],  # noqa: F811
    rows: int,
    width: int,
    expanded: int,
    dtype: torch.dtype,
) -> None:
    capability, launched = compiled
    kernel.token_guided_fusion(*zeros(rows, width, expanded, dtype), processors=132)
    names = [name for name, _ in launched]
    assert [name for name in names if name != "_sum_kernel"] == [
        "_product_kernel", "_norm_kernel", "_product_kernel", "_product_kernel"
    ]  # fmt: skip
    for _, built in launched:
        assert built.asm["cubin"]
        assert built.metadata.shared <= PROCESSORS[capability].memory_of_program


class Grids(list[tuple[int, ...]]):
    """In place of a kernel: keeps the grids that it is launched on."""

    def __getitem__(self, grid: Any) -> Any:
        self.append(grid)
        return lambda *_, **__: None


@once
@pytest.mark.parametrize(
    ("rows", "programs"),
    # The columns in tiles of 64 or 128: 64 and 172 tiles, where 264 programs fill the GPU; 32 and 86.
    [(1, [64 * 4, 172, 64 * 4]), (16, [64 * 4, 172, 64 * 4]), (128, [32 * 8, 86 * 3, 32 * 8])],
)
def test_programs_fill_the_gpu(rows: int, programs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama-3-8B's products on 132 multiprocessors."""
    grids = Grids()
    monkeypatch.setattr(kernel, "_product_kernel", grids)
    for name in ("_norm_kernel", "_sum_kernel"):
        monkeypatch.setattr(kernel, name, Grids())
    kernel.token_guided_fusion(*zeros(rows, 4096, 11008, torch.bfloat16), processors=132)
    assert [row * column * split for row, column, split in grids] == programs


@once
@pytest.mark.parametrize(
    ("measured", "rows", "expected"), [(0, 1, "naive"), (8, 1, "products"), (8, 8, "products"), (8, 9, "library")]
)
def test_the_measured_table_decides_by_rows(
    measured: int, rows: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def stand_in(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
        return lambda features, *_, **__: (ran.append(name), (features.clone(), features.clone()))[1]

    monkeypatch.setattr(fusion, "fused_up_to_rows", lambda device, dtype: measured)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(naive, "token_guided_fusion", stand_in("naive"))
    monkeypatch.setattr(kernel, "token_guided_fusion", stand_in("products"))
    monkeypatch.setattr(kernel, "with_library_products", stand_in("library"))
    case = make(rows)
    fusion.token_guided_fusion(case.features, case.table, case.weights, EPS, case.token_ids)
    assert ran == [expected]


@once
def test_gpus_and_data_types_without_a_measurement_use_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "FUSED_UP_TO_ROWS", {(9, 0): {torch.bfloat16: 24}})
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    gpu = torch.device("cuda")
    assert fusion.fused_up_to_rows(gpu, torch.bfloat16) == 24
    assert fusion.fused_up_to_rows(gpu, torch.float32) == 0
    assert fusion.fused_up_to_rows(torch.device("cpu"), torch.bfloat16) == 0
    capability = (8, 0)
    assert fusion.fused_up_to_rows(gpu, torch.bfloat16) == 0


@once
def test_a_compiled_model_keeps_it_whole_for_any_number_of_rows() -> None:
    def model(features: Tensor, table: Tensor, ids: Tensor, weights: FusionWeights) -> Tensor:
        hidden, share = fusion.token_guided_fusion_of_rank(features * 1, table[ids], weights, EPS)
        return hidden + share - fusion.token_guided_fusion(features * 1, table, weights, EPS, ids)

    graphs: list[torch.fx.GraphModule] = []
    whole = torch.compile(model, fullgraph=True, dynamic=True, backend=lambda graph, _: graphs.append(graph) or graph)
    for rows in (5, 9, 40):
        case = make(rows)
        assert whole(case.features, case.table, case.token_ids, case.weights).abs().max() < 1e-5
    (graph,) = graphs
    calls = [node for node in graph.graph.nodes if node.target is torch.ops.vllm_specext.token_guided_fusion.default]
    assert len(calls) == 2


@once
@pytest.mark.parametrize("gathered", [False, True])
def test_it_is_a_proper_operator(gathered: bool) -> None:
    case = make(4)
    embeddings, ids = (case.table[case.token_ids], None) if gathered else (case.table, case.token_ids)
    arguments = case.features, embeddings, ids, *case.weights, EPS, True
    torch.library.opcheck(torch.ops.vllm_specext.token_guided_fusion.default, arguments)


LARGE = [(64, 96), (2880, 7680), (3584, 18944), (4096, 11008), (8192, 28672)]


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ON_GPU, indirect=True)
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 17, 60, 100, 512])
@pytest.mark.parametrize(("width", "expanded"), LARGE)
def test_sizes_of_real_drafters_on_a_gpu(rows: int, width: int, expanded: int) -> None:
    case = make(rows, width, expanded, torch.bfloat16)
    assert close(case.fuse(), case.expected()[1])


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ON_GPU[:1], indirect=True)
def test_a_captured_launch_follows_features_and_tokens() -> None:
    case = make(16, 256, 320, torch.bfloat16)
    case.fuse()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = case.fuse()
    case.features.copy_(case.features.flip(0))
    case.token_ids.copy_(case.token_ids.roll(3))
    graph.replay()
    assert close(out, case.expected()[1])
