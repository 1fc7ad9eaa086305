"""At start everything is compiled that verification can ask for while serving, and nothing larger is drafted than the
schedule has."""

import inspect
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from torch import Tensor

from tests.kernels.gpus import H100
from vllm_specext.engine.drafting import warm_up
from vllm_specext.engine.graph_sizes import most_drafted
from vllm_specext.engine.verification.prefix_attention import PrefixAttention
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.engine.verification.verifying_layers import Verifies
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.tree.budget import TreeShape

SHAPE = TreeShape(nodes=59, depth=6, top_k=10)
MAX_MODEL_LEN = 20_000


def config(schedule: list[list[int]], most: int) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(schedule=schedule),
        scheduler_config=SimpleNamespace(max_num_seqs=most),
        num_speculative_tokens=59,
    )


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ([[1, 2, 59], [3, 4, 4], [5, 6, 0]], [59, 59, 59, 4, 4, 0, 0]),
        ([[1, 2, 4], [3, 3, 59], [4, 6, 0]], [59, 59, 59, 59, 0, 0, 0]),
        ([[1, 1000, 59]], [59] * 7),
    ],
)
def test_the_most_that_is_drafted_while_so_many_run(schedule: list[list[int]], expected: list[int]) -> None:
    assert most_drafted(config(schedule, most=6)) == expected


class Layer(SimpleNamespace):
    """A target's attention layer that notes what it is run on."""

    def __init__(self, heads: int, kv_heads: int, size: int, window: int = 0) -> None:
        # The values of a page follow its keys on the last axis, as on a GPU; the CPU reads the same shape otherwise.
        cache = torch.zeros(4, kv_heads, 16, 2 * size, dtype=torch.bfloat16)
        super().__init__(num_heads=heads, head_size=size, kv_cache=cache, layer_name="layer", ran=[])
        self.impl = SimpleNamespace(sliding_window=window, forward=self.note)

    def note(
        self, layer: Any, query: Tensor, key: None, value: None, kv_cache: Tensor, rows: TreeRows, output: Tensor
    ) -> None:
        assert (rows.num_rows, rows.query_start_loc.sum()) == (0, 0)
        assert output.dtype == torch.bfloat16
        self.ran.append((query, rows))


@pytest.mark.parametrize("heads", [(32, 8, 128), (32, 32, 128), (4, 2, 64)])
@pytest.mark.parametrize("most", [40, 200])
def test_no_step_needs_a_variant_that_was_not_compiled(
    heads: tuple[int, int, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from vllm_specext.kernels.tree_attention import variant
    from vllm_specext.kernels.tree_attention.tiles import Processors

    monkeypatch.setattr(Processors, "of", lambda device: H100)
    trees = TreeStates(SHAPE, most, MAX_MODEL_LEN, torch.device("cpu"))
    drafted = most_drafted(config([[1, 4, 59], [5, 8, 31], [9, 64, 4], [65, 1000, 2]], most))
    layer, table = Layer(*heads), torch.zeros(most, 8, dtype=torch.int32)
    warm_up.compile_attention(trees, [[layer, layer]], [table], drafted, MAX_MODEL_LEN, torch.bfloat16)
    keys, _ = warm_up.pages(layer.kv_cache)
    compiled = {variant(query, keys, keys, rows) for query, rows in layer.ran}
    assert len(compiled) == len(layer.ran), "a variant was compiled twice"
    chooser, needed = random.Random(0), set()
    for _ in range(4000):
        requests = chooser.randint(1, most)
        query = chooser.randint(2, drafted[requests] + 1)
        rows = trees.rows_for_warm_up(requests, query, table, chooser.randint(1, MAX_MODEL_LEN))
        needed.add(variant(layer.ran[0][0], keys, keys, rows))
    assert needed <= compiled
    assert len(needed) > 5


def test_layers_of_other_sizes_and_windows_and_with_sinks_are_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "variant_of", lambda *rows: "the same")
    trees = TreeStates(SHAPE, 2, 64, torch.device("cpu"))
    layers = [Layer(4, 2, 64), Layer(4, 2, 64), Layer(4, 2, 64, window=32), Layer(8, 2, 64), Layer(4, 2, 64)]
    layers[-1].impl.sinks = torch.zeros(4)
    table = torch.zeros(2, 4, dtype=torch.int32)
    warm_up.compile_attention(trees, [layers, []], [table, table], [59] * 3, 64, torch.bfloat16)
    assert [len(layer.ran) for layer in layers] == [1, 0, 1, 1, 1]


def test_layers_that_leave_prefixes_to_another_kernel_are_run_once() -> None:
    trees, table = TreeStates(SHAPE, 2, 64, torch.device("cpu")), torch.zeros(2, 4, dtype=torch.int32)
    layer = Layer(4, 2, 64)
    layer.impl.vllm_specext_verifies = Verifies(PrefixAttention(0.125, 0.0))
    warm_up.compile_attention(trees, [[layer]], [table], [59] * 3, 64, torch.bfloat16)
    assert len(layer.ran) == 1


def test_queries_are_those_that_a_layer_hands_to_its_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "variant_of", lambda *rows: "the same")
    plain, quantised = Layer(4, 2, 64), Layer(8, 2, 64)
    quantised.query_quant = torch.nn.Identity()
    trees, table = TreeStates(SHAPE, 2, 64, torch.device("cpu")), torch.zeros(2, 4, dtype=torch.int32)
    warm_up.compile_attention(trees, [[plain, quantised]], [table], [59] * 3, 64, torch.bfloat16)
    assert [layer.ran[0][0].dtype for layer in (plain, quantised)] == [torch.bfloat16, torch.float8_e4m3fn]


def test_compaction_is_compiled_for_every_group_of_layers_and_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    stock = warm_up.compact

    def compact(caches: Any, source: Tensor, destination: Tensor) -> None:
        seen.append((len(caches), source.shape))
        stock(caches, source, destination)

    monkeypatch.setattr(warm_up, "compact", compact)
    trees = TreeStates(SHAPE, 2, 64, torch.device("cpu"))
    layers = [Layer(4, 2, 64), Layer(4, 2, 64), Layer(4, 2, 64)]
    for layer in layers:
        layer.kv_cache.copy_(torch.randn(layer.kv_cache.shape))
    before = [layer.kv_cache.clone() for layer in layers]
    warm_up.compile_compaction(trees, [layers[:2], [], layers[2:]])
    assert seen == [(4, (1, 7)), (2, (1, 7))]
    assert all(torch.equal(layer.kv_cache, old) for layer, old in zip(layers, before, strict=True))


def test_rows_are_compiled_for_numbers_that_16_divides_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    stock = inspect.signature(warm_up.gather_draft_sampled)
    monkeypatch.setattr(warm_up, "gather_draft_sampled", lambda *a: launched.append(stock.bind(*a).arguments))
    ids, positions = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int64)
    lengths = torch.zeros(8, dtype=torch.int32)
    warm_up.compile_rows(SimpleNamespace(input_ids=ids, positions=positions), lengths)
    assert [len(call["logits_indices"]) % 16 == 0 for call in launched] == [True, False]
    assert all(call["prefill_len"] is lengths for call in launched)
    # Of the types that a step has, or others would be compiled.
    rows = "logits_indices", "expanded_idx_mapping", "expanded_local_pos"
    assert all([call[name].dtype for name in rows] == [torch.int64, torch.int64, torch.int32] for call in launched)


@pytest.mark.parametrize(
    ("schedule", "compiled"),
    [
        ([[1, 2, 59], [3, 6, 24], [7, 16, 6]], 1),
        ([[1, 8, 59], [9, 16, 0]], 0),
        ([[1, 8, 59], [9, 16, 1]], 0),  # the first token is drafted with the tree's
    ],
)
def test_what_drafts_chains_is_compiled_where_the_schedule_has_them(
    schedule: list[list[int]], compiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[Any] = []
    stock = inspect.signature(warm_up.prepare_decode_inputs)
    monkeypatch.setattr(warm_up, "prepare_decode_inputs", lambda *a, **k: launched.append(stock.bind(*a, **k)))
    speculator: Any = SimpleNamespace(
        sizes=SimpleNamespace(largest=SHAPE),
        device=torch.device("cpu"),
        draft_tokens=torch.zeros(16, 59, dtype=torch.int64),
        input_buffers=SimpleNamespace(seq_lens=torch.zeros(16, dtype=torch.int32)),
        sample_src_positions=torch.zeros(16, dtype=torch.int64),
        max_model_len=512,
        max_num_reqs=16,
        advance_draft_positions=True,
    )
    warm_up.compile_chains(speculator, schedule)
    assert [len(call.arguments["draft_tokens"]) for call in launched] == [1] * compiled


def test_calibration_is_compiled_with_and_without_a_choice_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(warm_up, "calibrate", lambda learned, slots, *given: seen.append((slots.dtype, *given[2:])))
    warm_up.compile_calibration(torch.device("cpu"))
    # Triton compiles for types, and these are vLLM's.
    found = [(slots, num_sampled.dtype, verified) for slots, num_sampled, verified, _ in seen]
    assert found == [(torch.int64, torch.int32, 0)] * 2
    assert [None if counts is None else counts.dtype for *_, counts in seen] == [None, torch.uint8]


def test_a_cpu_and_chains_have_nothing_to_compile() -> None:
    for steps, device in ((object(), "cpu"), (None, "cuda")):
        warm_up.warm_up(SimpleNamespace(model_state=SimpleNamespace(steps=steps), device=torch.device(device)))
