"""Layers of a step that are launched as the first one was: a GPU is told the same as if each were the first.

Without a GPU, kernels are compiled for one and what the driver is told is compared; on a GPU, the results.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compiling import AbsentGPU
from gpus import H100
from test_tree_attention import FP8, SCALE, Case, make
from torch import Tensor
from triton.compiler.compiler import LazyDict
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from vllm_specext.kernels.relaunch import launch_as_before
from vllm_specext.kernels.tree_attention import TreeRows, launching, tree_attention
from vllm_specext.kernels.tree_attention.after_prefix import attend_to_nodes
from vllm_specext.kernels.tree_attention.tiles import Launch, launch_for

HEADS, KV_HEADS, SIZE, PAGE_SIZE, PAGES = 8, 2, 64, 16, 8


class RecordingGPU(AbsentGPU):
    """Notes what kernels are launched with."""

    numbers = count(1000)

    def __init__(self) -> None:
        super().__init__(90)
        self.number = next(self.numbers)
        self.launches: list[tuple[Any, ...]] = []
        memory = {"max_shared_mem": H100.memory_of_program}
        self.utils = SimpleNamespace(load_binary=self._load, get_device_properties=lambda device: memory)

    def get_current_device(self) -> int:
        return self.number  # another test's binaries would be launched there

    def _load(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        function = hashlib.sha256(binary).hexdigest()
        return None, function, 255, 0, 1024  # a module; registers, spills and threads

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *told: self.launches.append((source.fn.__name__, *told))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> RecordingGPU:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    recording = RecordingGPU()
    monkeypatch.setattr(driver, "_active", recording)
    return recording


def rows(requests: int = 2, each: int = 7) -> TreeRows:
    return TreeRows(
        block_table=torch.zeros(requests, 64, dtype=torch.int32),
        query_start_loc=torch.arange(0, requests * each + 1, each, dtype=torch.int32),
        prefix_lens=torch.full((requests,), 500, dtype=torch.int32),
        visible=torch.zeros(requests, each, 1, dtype=torch.int32),
        num_rows=requests * each,
        max_query_len=each,
        num_nodes=each,
        max_seq_len=600,
    )


@dataclass
class Layer:
    """Its tensors, and what it is called with."""

    dtype: torch.dtype = torch.bfloat16
    cache: torch.dtype | None = None
    scale: float = 0.125
    soft_cap: float = 0.0
    sliding_window: int = 0
    sinks: bool = False
    token_major: bool = False
    shifted: int = 0
    """Numbers by which the query begins after an address that is divisible by 16."""
    runs: int = 4

    def __post_init__(self) -> None:
        numbers = 14 * HEADS * SIZE
        self.query = torch.zeros(numbers + 8).to(self.dtype)[self.shifted :][:numbers].view(-1, HEADS, SIZE)
        both = torch.zeros(PAGES, KV_HEADS, PAGE_SIZE, 2 * SIZE).to(self.cache or self.dtype)
        if self.token_major:
            both = both.transpose(1, 2).contiguous().transpose(1, 2)
        self.keys, self.values = both.chunk(2, dim=-1)
        self.out = torch.zeros(14, HEADS, SIZE, dtype=torch.bfloat16)
        factor = torch.ones(()) if self.cache else None
        self.options = {
            "k_scale": factor,
            "v_scale": None if factor is None else torch.ones(KV_HEADS),
            "sinks": torch.zeros(HEADS) if self.sinks else None,
            "scale": self.scale,
            "soft_cap": self.soft_cap,
        }

    def attend(self, rows: TreeRows) -> None:
        tensors = self.query, self.keys, self.values, rows, self.out
        tile = launch_for(self.query, self.keys, self.values, rows, H100).tile
        launch = Launch(tile, self.runs, at_once=8)
        launching.tree_attention(*tensors, **self.options, sliding_window=self.sliding_window, launch=launch)

    def attend_to_nodes(self, rows: TreeRows) -> None:
        lse = torch.zeros(HEADS, 14)
        attend_to_nodes(
            self.query, self.keys, self.values, rows, self.out, lse, scale=self.scale, soft_cap=self.soft_cap
        )


def told(gpu: RecordingGPU, layer: Layer) -> list[tuple[Any, ...]]:
    """What the driver was told since the last call. Of tensors that are made for a launch, what they are."""
    own = [layer.query, layer.keys, layer.values, layer.out, layer.options["sinks"]]
    own += [layer.options[name] for name in ("k_scale", "v_scale")]
    named = {(each.data_ptr(), each.dtype): place for place, each in enumerate(own) if each is not None}

    def plain(value: Any) -> Any:
        if isinstance(value, LazyDict):
            return "for hooks"
        if not isinstance(value, Tensor):
            return value
        return named.get((value.data_ptr(), value.dtype), (value.dtype, value.shape))

    launches = [tuple(map(plain, launch)) for launch in gpu.launches]
    gpu.launches.clear()
    return launches


LAYERS = {
    "usual": Layer,
    "whole": lambda: Layer(runs=1),
    "windows, caps, sinks": lambda: Layer(soft_cap=30.0, sliding_window=128, sinks=True),
    "float8": lambda: Layer(cache=FP8),
    "token-major": lambda: Layer(token_major=True, dtype=torch.float16),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layer_is_launched_as_if_it_were_the_first(
    gpu: RecordingGPU, monkeypatch: pytest.MonkeyPatch, layer: Callable[[], Layer]
) -> None:
    first, second, trees = layer(), layer(), rows()
    second.attend(rows())
    expected = told(gpu, second)
    assert [name for name, *_ in expected] == ["_tree_attention_kernel", "_merge_kernel"][: 1 + (first.runs > 1)]
    first.attend(trees)
    assert told(gpu, first) == expected
    monkeypatch.delattr(JITFunction, "run")  # what works out of all arguments what was compiled for
    second.attend(trees)
    assert told(gpu, second) == expected


OTHERS = {
    "no window": lambda: Layer(),
    "other scale": lambda: Layer(sliding_window=128, scale=0.25),
    "capped": lambda: Layer(sliding_window=128, soft_cap=30.0),
    "sinks": lambda: Layer(sliding_window=128, sinks=True),
    "float16": lambda: Layer(sliding_window=128, dtype=torch.float16),
    "float8": lambda: Layer(sliding_window=128, cache=FP8),
    "other strides": lambda: Layer(sliding_window=128, token_major=True),
    "other runs": lambda: Layer(sliding_window=128, runs=2),
    "query at an odd place": lambda: Layer(sliding_window=128, shifted=1),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_layer_that_differs_is_not_launched_as_others_are(gpu: RecordingGPU, other: Callable[[], Layer]) -> None:
    usual, layer, trees = Layer(sliding_window=128), other(), rows()
    layer.attend(rows())
    expected = told(gpu, layer)
    for first, then in ((usual, layer), (layer, usual)):
        first.attend(trees)
        before = told(gpu, first)
        then.attend(trees)
        assert told(gpu, then) != before
        layer.attend(trees)
        assert told(gpu, layer) == expected


def test_attention_to_nodes_is_launched_as_if_each_layer_were_the_first(
    gpu: RecordingGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, trees = Layer(), Layer(), rows()
    second.attend_to_nodes(rows())
    expected = told(gpu, second)
    first.attend_to_nodes(trees)
    assert told(gpu, first) == expected
    Layer(soft_cap=30.0).attend_to_nodes(trees)
    assert told(gpu, first)[0][1:4] == expected[0][1:4]
    monkeypatch.delattr(JITFunction, "run")
    second.attend_to_nodes(trees)
    assert told(gpu, second) == expected


def test_another_step_is_launched_anew(gpu: RecordingGPU) -> None:
    layer = Layer()
    layer.attend(rows())
    before = told(gpu, layer)
    layer.attend(rows(each=5))
    assert told(gpu, layer) != before


def test_what_a_graph_captures_is_launched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a launch writes to must be the graph's own."""
    tensor: Any = SimpleNamespace(
        is_cuda=True, dtype=torch.float32, shape=(1, 1), stride=lambda: (1, 1), data_ptr=lambda: 16
    )
    captured = iter([False, False, True, True])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: next(captured))
    kept: dict[Any, Any] = {}
    made: list[str] = []

    class Launched:
        can_repeat = True

        def __init__(self) -> None:
            made.append("first")

        def __call__(self, *tensors: Tensor | None) -> None:
            made.append("again")

    for _ in range(4):
        launch_as_before(kept, (tensor, None), (), Launched)
    assert made == ["first", "again", "first", "again"]


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
def test_layers_of_a_step_attend_to_their_own_keys_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, captured: bool, sinks: bool
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    monkeypatch.setattr(Case, "device", "cuda")
    first = make([12, 1, 7], [3000, 400, 0])
    keys, values = (torch.empty_like(cache).copy_(cache.flip(1)) for cache in (first.keys, first.values))
    cases = [first, replace(first, query=first.query.flip(0).contiguous(), keys=keys, values=values)]
    scores = [torch.linspace(-2, 4, 4).cuda() + layer if sinks else None for layer in range(2)]
    outs = [torch.full_like(case.query, 7.0) for case in cases]

    def step() -> None:
        for case, score, out in zip(cases, scores, outs, strict=True):
            tree_attention(case.query, case.keys, case.values, case.rows, out, scale=SCALE, sinks=score)

    step()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for out in outs:
            out.fill_(7.0)
        graph.replay()
    for case, score, out in zip(cases, scores, outs, strict=True):
        torch.testing.assert_close(out.cpu().double(), case.expected(sinks=score), rtol=0, atol=1e-5)
