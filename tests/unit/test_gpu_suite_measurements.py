"""What the GPU suite measures, without a GPU: floors against numbers worked out by hand, the inputs, and what runs on
them."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from benchmarks.gpu_suite import (
    attention,
    attention_peers,
    ceilings,
    dummy_models,
    engine,
    engine_methods,
    engine_steps,
    fusion,
    latent_attention,
    small_kernels,
    synthetic,
    timing,
)
from benchmarks.gpu_suite.attention_problem import Problem, Shape, random_trees
from tests.kernels.gpus import H100
from vllm_specext.methods.griffin.checkpoint import read_shape
from vllm_specext.tree.walk import accept_tree

SMALL = Shape(2, 50, 12, heads=4, kv_heads=2, head_size=32)
LEVEL = Shape(2, 50, 12, heads=4, kv_heads=4, head_size=32, frontier=3)
"""A level that is drafted."""
on_cpu = pytest.mark.skipif(timing.DEVICE != "cpu", reason="a GPU has other kernels and sizes")


def test_the_floor_of_attention() -> None:
    """2 requests, 100 tokens before 5 rows, 8 heads of 64 on 2 of keys."""
    work = ceilings.attention(2, 105, 5, heads=8, kv_heads=2, head_size=64)
    keys_and_values = 2 * 105 * 2 * 64 * 2
    queries_and_results = 2 * 5 * 8 * 64 * 2
    assert work.bytes == 2 * (keys_and_values + queries_and_results) == 128000
    assert work.flops == 2 * 5 * 105 * 8 * 64 * 2 * 2 == 2150400


def test_the_floor_of_llama_3_8bs_fusion_is_that_of_its_weights() -> None:
    work = ceilings.fusion(1, hidden=4096, inner=14336)
    weights = 4096 * 8192 + 14336 * 8192 + 4096 * 14336
    assert weights == 209715200
    assert work.bytes == 2 * (weights + 3 * 4096 + 3 * 4096)
    assert work.flops == 2 * weights


def test_the_larger_of_two_floors_counts() -> None:
    measured = ceilings.Ceilings(bytes_per_us=3e6, flops_per_us=8e8)
    by_bytes, by_products = ceilings.Work(6_000_000, 8_000_000), ceilings.Work(3_000_000, 4_000_000_000)
    assert measured.floor_us(by_bytes) == 2
    assert measured.floor_us(by_products) == 5
    assert measured.shares(by_products, 10) == {"bandwidth_share": 0.1, "floor_us": 5, "floor_share": 0.5}


@pytest.mark.parametrize(
    ("rows", "figures", "missed"),
    [
        (60, {"floor_share": 0.7, "bandwidth_share": 0.5, "ratio_to_causal": 1.15}, []),
        (60, {"floor_share": 0.69, "bandwidth_share": 0.9}, ["floor_share"]),
        (10, {"floor_share": 0.5, "bandwidth_share": 0.85}, []),
        (
            5,
            {"floor_share": 0.9, "bandwidth_share": 0.84, "ratio_to_causal": 1.2},
            ["bandwidth_share", "ratio_to_causal"],
        ),
    ],
)
def test_trees_are_judged_by_their_floor_and_chains_by_the_bandwidth(
    rows: int, figures: dict[str, float], missed: list[str]
) -> None:
    assert attention.missed({"rows": rows} | figures) == missed


def test_kernels_are_used_up_to_where_they_lose_first() -> None:
    fused, library = {1: 10.0, 8: 11.0, 16: 14.0, 32: 12.0}, {1: 12.0, 8: 12.0, 16: 13.0, 32: 13.0}
    assert fusion.fused_up_to(fused, library) == 8
    assert fusion.fused_up_to({1: 13.0}, library) == 0
    assert fusion.fused_up_to({}, library) == 0


def test_busy_time_counts_what_runs_side_by_side_once() -> None:
    events = [("a", 0, 2_000_000), ("b", 1_000_000, 2_000_000), ("a", 7_000_000, 1_000_000), ("c", 7_100_000, 100_000)]
    found = engine_steps.busy(events, steps=2, step_ms=4.0)
    assert found["gpu_busy_ms"] == 2.0
    assert found["gpu_idle_ms"] == 2.0
    assert found["gpu_idle_share"] == 0.5
    assert found["launches_per_step"] == 2
    assert found["kernels"][0] == {"name": "a", "ms_per_step": 1.5, "per_step": 1.0}


def test_launches_of_the_host_and_its_graphs_are_counted_apart() -> None:
    names = [
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "cudaGraphLaunch",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
        "aten",
    ]
    assert engine_steps.host_calls(names, 2) == {"host_launches_per_step": 1.5, "graphs_per_step": 0.5}
    assert engine_steps.host_calls(["cudaEventQuery"], 2) == {}


@on_cpu
@pytest.mark.parametrize("shape", [SMALL, LEVEL])
def test_all_implementations_are_given_the_same_problem(shape: Shape) -> None:
    problem = Problem(shape, torch.float32)
    ours = attention_peers.ours(problem)().clone()
    torch.testing.assert_close(attention_peers.sdpa(problem, SDPBackend.MATH)(), ours)
    assert problem.mask.shape == (shape.requests, shape.rows, shape.slots)
    # Every node sees itself and the root, which is a row of a tree that is verified.
    assert problem.mask.sum(dim=2).min() >= shape.context + (2 if shape.frontier else 1)
    problem.mask[0, -1, 3] ^= True
    assert attention.difference(attention_peers.sdpa(problem, SDPBackend.MATH)(), ours) > 1e-3


@on_cpu
def test_latent_attention_is_compared_and_another_scale_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = latent_attention.Shape(requests=2, context=20, nodes=5, heads=4)
    peer, row = latent_attention.rows([shape])
    assert peer["skipped"].startswith("not installed")
    assert (row["wrong"], row["heads"], row["rows"]) == (False, 4, 6)
    assert row["difference"] < 1e-2
    json.dumps([peer, row])
    monkeypatch.setattr(latent_attention, "SCALE", 0.5)
    made = latent_attention.Problem(shape)
    other = latent_attention.ours(made)()
    monkeypatch.undo()
    assert attention.difference(other, latent_attention.expected(made)) > 0.1


@on_cpu
def test_attention_rows_name_what_is_missing_and_compare_what_is_there() -> None:
    rows = {row["implementation"]: row for row in attention.rows([SMALL])}
    assert rows.keys() == {*attention_peers.TREES, *attention_peers.CAUSAL}
    assert rows["ours"]["wrong"] is False
    assert rows["ours"]["difference"] < 1e-2
    assert "skipped" in rows["SDPA cuDNN"]
    json.dumps(list(rows.values()))


@on_cpu
def test_a_wrong_result_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(problem: Problem) -> attention_peers.Call:
        return lambda: torch.full_like(problem.query, math.nan)

    monkeypatch.setitem(attention_peers.TREES, "ours", spoilt)
    assert next(row for row in attention.rows([SMALL]) if row["implementation"] == "ours")["wrong"] is True


@on_cpu
def test_tiles_are_tried_beside_the_kernels_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from vllm_specext.kernels.tree_attention import launching
    from vllm_specext.kernels.tree_attention.tiles import Processors

    launched = []
    monkeypatch.setattr(Processors, "of", lambda device: H100)
    monkeypatch.setattr(launching, "tree_attention", lambda *args, **options: launched.append(options["launch"]))
    longer = Shape(2, 1024, 12, heads=4, kv_heads=2, head_size=32)
    tiles = [(64, 64, 4, 3), (16, 32, 4, 3), (4, 64, 4, 3)]  # for 26 rows the first is too large, the last too small
    rows = list(attention.tile_rows([SMALL, longer], tiles, [0, 1, 3]))
    assert [(row["tile"], row["context"], row["block_n"], row["runs"]) for row in rows] == [
        ("as chosen", 50, 64, 1),
        ("as chosen", 1024, 64, 8),
        ("tried", 50, 32, 1),
        ("tried", 1024, 32, 1),
        ("tried", 1024, 32, 8),  # for two requests of four times the shortest run
    ]
    assert {(launch.tile.block_n, launch.runs, launch.at_once) for launch in launched} == {
        *((64, runs, 264) for runs in (1, 8)),
        *((32, runs, 264) for runs in (1, 8)),
    }
    assert not any("skipped" in row for row in rows)


@on_cpu
def test_small_kernels_agree_with_torch_and_are_timed() -> None:
    rows = [*small_kernels.compaction_rows((2,), 2), *small_kernels.rows((2,), 2)]
    assert len(rows) == 20
    assert not any(row["wrong"] or "skipped" in row for row in rows)


def test_random_trees_have_parents_before_children() -> None:
    trees = random_trees(3, 20, torch.Generator().manual_seed(1))
    assert bool((trees.parents[:, 1:] < torch.arange(1, 21)).all())
    assert trees.depths.max() > 2


def test_a_hollow_checkpoint_has_the_shapes_and_no_weights(tmp_path: Path) -> None:
    dummy_models.write(tmp_path, dummy_models.LLAMA_3_8B, "bfloat16")
    shape = read_shape(tmp_path / "griffin")
    assert (shape.hidden_size, shape.tgf_size, shape.vocab_size) == (4096, 14336, 128256)
    on_disk = (tmp_path / "griffin" / "model.safetensors").stat().st_blocks * 512
    assert on_disk < 1 << 20


@pytest.mark.parametrize(("rate", "accepted"), [(1.0, 3), (0.0, 0)])
def test_synthetic_acceptance_takes_the_best_path_as_deep_as_told(rate: float, accepted: int) -> None:
    """Two requests; the first children are nodes 1, 3 and 5."""
    parents = torch.tensor([[0, 0, 0, 1, 1, 3]] * 2)
    drafted, drawn = torch.arange(600, 612), torch.full((12,), -5)
    starts = torch.tensor([0, 6, 12])
    told = synthetic.draws(drawn, drafted, starts, parents, 3, lambda nodes: rate)
    _, num_sampled, path = accept_tree(told, drafted, starts, parents, 3)
    assert (num_sampled - 1).tolist() == [accepted] * 2
    if accepted:
        assert path.tolist() == [[0, 1, 3, 5]] * 2


def test_synthetic_acceptance_goes_down_every_requests_own_tree() -> None:
    """Of one batch: a tree, a chain of three tokens in the rows of a tree, as vLLM's warm-up has them, and a tree of
    another shape."""
    parents = torch.tensor([[0, 0, 0, 1, 1, 3], [0, 0, 1, 2, 4, 5], [0, 0, 1, 1, 2, 2]])
    width = parents.shape[1]
    paths = [[0, 1, 3, 5], [0, 1, 2, 3], [0, 1, 2, 4]]
    assert synthetic.first_children(parents, 3).tolist() == paths
    assert synthetic.first_children(parents, 5)[:, 4:].tolist() == [[width] * 2] * 3
    drafted, starts = torch.arange(3 * width), torch.arange(4) * width
    told = synthetic.draws(torch.full((3 * width,), -5), drafted, starts, parents, 3, lambda nodes: 1.0)
    _, num_sampled, path = accept_tree(told, drafted, starts, parents, 3)
    assert num_sampled.tolist() == [4] * 3
    assert path.tolist() == paths


def test_graphs_are_captured_for_the_rows_that_steps_have() -> None:
    assert engine.captured((1, 4), 60) == [1, 4, 61, 244]
    assert engine.captured((1, 4), 0) == [1, 4]


def test_synthetic_acceptance_stays_in_a_request_whose_tree_was_cut() -> None:
    """The first of two requests has three rows of its six: the path ends with node 1 there."""
    parents = torch.tensor([[0, 0, 0, 1, 1, 3]] * 2)
    drafted, drawn, starts = torch.arange(600, 609), torch.full((9,), -5), torch.tensor([0, 3, 9])
    told = synthetic.draws(drawn, drafted, starts, parents, 3, lambda nodes: 1.0)
    assert told.tolist() == [601, 1, -5, 604, 606, -5, 608, -5, -5]


def test_a_walk_that_is_to_end_does_not_go_on_because_the_target_draws_what_was_drafted() -> None:
    parents, starts = torch.tensor([[0, 0, 1, 2]] * 2), torch.tensor([0, 4, 8])
    drafted = drawn = torch.full((8,), 1234)
    assert (accept_tree(drawn, drafted, starts, parents, 3)[1] - 1).tolist() == [3, 3]
    told = synthetic.draws(drawn, drafted, starts, parents, 3, lambda nodes: 0.0)
    assert (accept_tree(told, drafted, starts, parents, 3)[1] - 1).tolist() == [0, 0]


def test_more_drafted_tokens_are_assumed_to_be_accepted_more_often() -> None:
    assert synthetic.unconditional(0.5, 3) == [0.5, 0.25, 0.125]
    assert [synthetic.rate_for(nodes) for nodes in (1, 4, 14, 15, 59, 255)] == [0.7, 0.7, 0.7, 0.8, 0.85, 0.85]


def test_vllms_methods_are_given_the_same_acceptance() -> None:
    config = engine_methods.METHODS["eagle3-chain-4"].config(Path("drafter"), [1, 64])
    assert config is not None
    assert config["synthetic_acceptance_rates"] == synthetic.unconditional(0.7, 4)
    default = engine_methods.METHODS["griffin-default"].config(Path("drafter"), [1, 64])
    assert default == {"method": "griffin", "model": "drafter", "num_speculative_tokens": 59}
